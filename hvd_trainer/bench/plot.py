"""The picture of a measurement, as PNG. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_trainer.bench.summary import Row
from hvd_trainer.errors import MissingPartError

OURS, OTHERS, GREY = "#0072B2", "#E69F00", "#555555"  # Okabe and Ito: told apart without red and green


def pyplot() -> Any:
    """matplotlib's pyplot, drawing into files only.

    Raises:
        MissingPartError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPartError("the plot needs matplotlib", fix="pip install matplotlib; or --no-plot") from error
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    return plt


def steps(path: Path, rows: Mapping[str, Sequence[Row]], title: str) -> None:
    """One picture for each workload, side by side: a bar for each column, its range, and compute-only as a line.

    Args:
        path: the PNG file.
        rows: {workload: its rows}.
        title: above everything.
    """
    plt = pyplot()
    longest = max(len(found) for found in rows.values())
    figure, axes = plt.subplots(1, len(rows), figsize=(1 + 3.6 * len(rows), 1.6 + 0.3 * longest), squeeze=False)
    for axis, (workload, found) in zip(axes[0], rows.items()):
        for place, row in enumerate(found):
            ours = row.column.startswith("ours")
            ranges = [[row.ms.mid - row.ms.low], [row.ms.high - row.ms.mid]]
            color = OURS if ours else GREY if row.column.startswith("compute") else OTHERS
            axis.barh(place, row.ms.mid, color=color, xerr=ranges, error_kw={"ecolor": "black", "capsize": 2})
        axis.set_yticks(range(len(found)), [row.column for row in found], fontsize=8)
        axis.invert_yaxis()
        bound = next((row for row in found if row.column == "compute"), None)
        if bound is not None:
            axis.axvline(bound.ms.mid, color=GREY, linestyle="--", linewidth=1)
        axis.set_title(workload)
        axis.set_xlabel("ms a step")
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
