"""The picture of a measurement, as PNG. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hvd_trainer import plotting
from hvd_trainer.bench.scaling import STRONG, WEAK, Point
from hvd_trainer.bench.summary import Row
from hvd_trainer.bench.transfers import COPY, RAW, gb_per_s

OURS, OTHERS, GREY = "#0072B2", "#E69F00", "#555555"  # Okabe and Ito: told apart without red and green


def pyplot() -> Any:
    """matplotlib's pyplot, or how to do without."""
    return plotting.pyplot("pip install matplotlib; or --no-plot")


def steps(path: Path, rows: Mapping[str, Sequence[Row]], title: str) -> None:
    """One picture for each workload, side by side: a bar for each column, its range, and compute-only as a line.

    Args:
        path: the PNG file.
        rows: {workload: its rows}.
        title: above everything.
    """
    plt = pyplot()
    longest = max(len(found) for found in rows.values())
    figure, axes = plt.subplots(1, len(rows), figsize=(max(6.5, 1 + 3.6 * len(rows)), 1.6 + 0.3 * longest), squeeze=False)
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


def transfers(path: Path, times: Mapping[str, Mapping[int, float]], title: str) -> None:
    """Time and bandwidth over the size, a line for each column.

    Args:
        path: the PNG file.
        times: {column: {bytes: milliseconds}}.
        title: above everything.
    """
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for name, found in times.items():
        sizes = list(found)
        style = {"marker": "o", "markersize": 3, "linestyle": "--" if name in (RAW, COPY) else "-", "label": name}
        left.loglog(sizes, [1e3 * found[size] for size in sizes], **style)
        right.loglog(sizes, [gb_per_s(size, found[size]) for size in sizes], **style)
    for axis, label in ((left, "microseconds"), (right, "GB/s of the tensor's bytes")):
        axis.set_xlabel("bytes")
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    left.legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def scaling(path: Path, points: Sequence[Point], title: str) -> None:
    """Efficiency over the number of ranks, weak at the left, strong at the right."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True)
    for axis, way in zip(axes, (WEAK, STRONG)):
        for name in dict.fromkeys(point.column for point in points):
            mine = [point for point in points if point.column == name and point.way == way]
            ranks, middle = [point.num_ranks for point in mine], [point.efficiency.mid for point in mine]
            low = [point.efficiency.mid - point.efficiency.low for point in mine]
            high = [point.efficiency.high - point.efficiency.mid for point in mine]
            axis.errorbar(ranks, middle, yerr=[low, high], marker="o", markersize=3, capsize=2, label=name)
        axis.axhline(1.0, color=GREY, linestyle="--", linewidth=1)
        axis.set_title(way)
        axis.set_xlabel("ranks")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("efficiency")
    axes[0].set_ylim(bottom=0)
    axes[0].legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
