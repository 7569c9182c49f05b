"""The pictures of the record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.large_batch import judge, plan
from hvd_trainer.bench.plot import GREY, OTHERS, OURS, pyplot

RULE_COLORS = {"noise rule": OURS, "linear": OTHERS, "sqrt": GREY}


def draw(folder: Path, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """All that the parts allow; returns the names of the files."""
    names = []
    for name, needs, how in (("steps.png", ("grid",), steps), ("rates.png", ("grid", "rates"), rates), ("noise.png", ("noise",), noise), ("step-times.png", ("times",), times)):
        if all(part in found for part in needs):
            how(folder / name, found)
            names.append(name)
    return names


def axes(title: str, y: str) -> tuple[Any, Any]:
    """A figure with the batch below, both axes logarithmic."""
    figure, axis = pyplot().subplots(figsize=(6.4, 4.2))
    axis.set(xscale="log", yscale="log", xlabel="global batch", ylabel=y, title=title)
    axis.set_xticks(plan.BATCHES, [str(batch) for batch in plan.BATCHES])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def save(figure: Any, axis: Any, path: Path) -> None:
    """Write the file."""
    axis.legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot().close(figure)


def steps(path: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Measured steps, the fitted hyperbola, and the curves predicted from one run each."""
    grid = found["grid"]
    figure, axis = axes(f"steps to validation loss {grid['settings']['target']:g}", "steps")
    best = judge.bests(grid["cells"])
    line = np.geomspace(min(best), max(best), 100)
    axis.plot(list(best), [row["steps"] for row in best.values()], "o", color="black", label="measured, best rate", zorder=3)
    curve = judge.fit(grid["cells"])
    if curve is not None:
        axis.plot(line, [curve.steps(batch) for batch in line], color=GREY, label=f"hyperbola, critical batch {curve.critical_batch:.0f}")
    for number, cell in enumerate(cell for cell in found.get("noise", {}).get("cells", ()) if cell["seed"] == 0):
        predicted = judge.curves(cell).get("mean")
        if predicted is not None:
            axis.plot(line, [predicted.steps(batch) for batch in line], "--", color=(OURS, OTHERS, "#009E73")[number % 3], label=f"predicted from one run at {cell['batch']}, noise scale {predicted.critical_batch:.0f}")
    save(figure, axis, path)


def rates(path: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Tuned rates, and those of the rules; crosses where the run diverged or did not come to the target."""
    figure, axis = axes(f"peak rate; rules from batch {plan.MAIN_BATCH}", "rate")
    best = judge.bests(found["grid"]["cells"])
    axis.plot(list(best), [row["lr"] for row in best.values()], "o", color="black", label="best of the grid", zorder=3)
    rows = [row for row in judge.rule_table(found["rates"], found["grid"]) if row["base"] == plan.MAIN_BATCH]
    for rule in plan.RULES:
        mine = [row for row in rows if row["rule"] == rule]
        axis.plot([row["batch"] for row in mine], [row["lr"] for row in mine], color=RULE_COLORS[rule], label=rule)
        bad = [row for row in mine if not math.isfinite(row["ratio"])]
        axis.plot([row["batch"] for row in bad], [row["lr"] for row in bad], "x", color=RULE_COLORS[rule], markersize=9)
    save(figure, axis, path)


def noise(path: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """The noise scale along the runs, over the share of the run."""
    figure, axis = pyplot().subplots(figsize=(6.4, 4.2))
    axis.set(xlabel="share of the steps to the target", ylabel="noise scale, samples", yscale="log", title="windows of the noise runs")
    for number, cell in enumerate(cell for cell in found["noise"]["cells"] if cell["seed"] == 0):
        points = [(step / cell["steps"], value) for step, value in cell["noise_windows"] if value is not None]
        axis.plot([x for x, _ in points], [y for _, y in points], ".-", color=(OURS, OTHERS, "#009E73")[number % 3], label=f"batch {cell['batch']}")
    axis.spines[["top", "right"]].set_visible(False)
    save(figure, axis, path)


def times(path: Path, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Measured steps and the model: filled points were fitted."""
    figure, axis = axes("seconds of a step; hollow: not fitted", "s")
    rows = judge.step_table(found["times"])
    for ranks, color in ((1, GREY), (2, OURS)):
        mine = [row for row in rows if row["ranks"] == ranks]
        axis.plot([row["batch"] for row in mine], [row["predicted_s"] for row in mine], color=color, label=f"model, N = {ranks}")
        for used, fill in ((True, color), (False, "white")):
            some = [row for row in mine if row["used"] == used]
            axis.plot([row["batch"] for row in some], [row["measured_s"] for row in some], "o", color=color, markerfacecolor=fill)
    save(figure, axis, path)
