"""The figures of the report: each a function of the facts that gives a figure, or None where its data are missing."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from hvd_trainer.amounts import show_count
from hvd_trainer.cost.policies import EXTRAPOLATED, FIXED_GLOBAL, FIXED_PER_RANK, MEASURED, PREDICTED, RECOMMENDED
from hvd_trainer.optim.noise import gain
from hvd_trainer.report.curves import Curves
from hvd_trainer.report.draw import (
    BLUE,
    FAINT,
    FOR_RANKS,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    TEXT,
    legend_below,
    plain,
    plain_log,
    spread,
    ticks,
)
from hvd_trainer.report.facts import DIVERGED, FAILED, Facts, number

WIDEST = 4.0  # upper over lower end of an interval that is drawn
COLOURS = {FIXED_GLOBAL: ORANGE, FIXED_PER_RANK: GREEN, RECOMMENDED: BLUE}


def steps_and_samples(plt: Any, facts: Facts, curves: Curves) -> Optional[Any]:
    """Steps and samples to the target against the batch: trials, the fit with its interval, and the prediction."""
    if not curves.points and curves.predicted is None:
        return None
    batches = [point.global_batch or 1 for point in curves.points]
    predicted_at = [batch for batch in (number(row.get("global_batch")) for row in facts.entries("prediction", "rows")) if batch]
    low, high = spread([*batches, *predicted_at, *([curves.predicted.batch] if curves.predicted else [])], 1.4)
    grid = np.geomspace(low, high, 120)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.9), layout="constrained")
    for axis, power in zip(axes, (0, 1)):  # steps, and steps times the batch
        shown = _draw_curves(axis, curves, grid, power)
        others = [t for t in facts.trials if t.is_met and t.global_batch and t.optimizer == curves.optimizer and t not in curves.points]
        axis.plot(
            [t.global_batch for t in others], [t.steps * t.global_batch**power for t in others], "o", color=FAINT, markersize=3.5,
            alpha=0.6, label="other trials", linestyle="none",
        ) if others else None  # fmt: skip
        axis.plot(batches, [p.steps * (p.global_batch or 1) ** power for p in curves.points], "o", color=BLUE, label="fewest steps, measured")
        critical = curves.critical_batch
        if critical and low < critical < high:
            axis.axvline(critical, color=FAINT, linestyle=":", linewidth=1.2, label=f"critical batch {plain(round(critical))}")
        values = [*shown, *(p.steps * (p.global_batch or 1) ** power for p in curves.points), *(t.steps * t.global_batch**power for t in others)]
        _log_log(axis, (low, high), spread(values, 1.2), x_base=2)
        axis.set_xlabel("global batch (samples a step)")
        axis.set_ylabel(("steps", "samples")[power] + " to the target")
        axis.set_title(("Steps", "Samples")[power])
    legend_below(figure, axes, 5)
    return figure


def _draw_curves(axis: Any, curves: Curves, grid: np.ndarray, power: int) -> list[float]:
    shown: list[float] = []
    fitted = "hyperbola, fitted" + (" (undetermined)" if curves.fit is not None and curves.fit.reason else "")
    for curve, colour, dash, label in (
        (curves.predicted, ORANGE, "--", "predicted from the noise scale"),
        (curves.fit, BLUE, "-", fitted),
    ):
        if curve is None:
            continue
        values = [curve.steps(batch) * batch**power for batch in grid]
        axis.plot(grid, values, dash, color=colour, label=label)
        shown += values
        bands = [curve.interval(batch) for batch in grid]
        if bands[0] is None:
            continue
        lows, highs = np.array(bands).T * grid**power
        if np.median(highs / lows) < WIDEST:  # else it says nothing but would fill the plot
            axis.fill_between(grid, lows, highs, color=colour, alpha=0.15, linewidth=0, label="95 %, " + ("fitted" if curve is curves.fit else "predicted"))
    return shown


def time_against_ranks(plt: Any, facts: Facts, curves: Curves) -> Optional[Any]:
    """Time to the target against ranks for three policies; what is extrapolated is dotted, and stands in a shade."""
    policies = curves.policies(facts)
    if not policies or curves.task is None:
        return None
    figure, axis = plt.subplots(figsize=(7.2, 4.1), layout="constrained")
    edge = 2 * curves.task.most_ranks_measured
    for name, points in policies.items():
        x, y = [point.ranks for point in points], [point.seconds for point in points]
        solid = [point for point in points if point.label != EXTRAPOLATED]
        axis.plot(x, y, ":", color=COLOURS[name], linewidth=1.6)
        axis.plot([p.ranks for p in solid], [p.seconds for p in solid], "-", color=COLOURS[name], label=name)
        for label, fill in ((MEASURED, COLOURS[name]), (PREDICTED, "none"), (EXTRAPOLATED, "none")):
            chosen = [point for point in points if point.label == label]
            axis.plot([p.ranks for p in chosen], [p.seconds for p in chosen], "o", color=COLOURS[name], markerfacecolor=fill)
    bests = [trial for trial in map(facts.best, facts.ranks) if trial is not None]
    axis.plot([t.ranks for t in bests], [facts.seconds(t) for t in bests], "D", color=PURPLE, markersize=7, label="best trial, measured", zorder=4)
    for label, fill in ((MEASURED, TEXT), (PREDICTED, "none")):
        axis.plot([], [], "o", color=TEXT, markerfacecolor=fill, label=label)
    axis.plot([], [], "o:", color=TEXT, markerfacecolor="none", label=EXTRAPOLATED)
    everything = [point for points in policies.values() for point in points]
    x_limits = spread([point.ranks for point in everything], 1.15)
    y_limits = spread([*(point.seconds for point in everything), *(facts.seconds(trial) for trial in bests)])
    axis.axvspan(edge * 1.06, x_limits[1], color=FAINT, alpha=0.12, linewidth=0)
    axis.text(edge * 1.12, y_limits[1], "extrapolated", color=FAINT, va="top", fontsize=9)
    _log_log(axis, x_limits, y_limits, x_base=2)
    axis.set_xlabel("ranks")
    axis.set_ylabel("time to the target (s)")
    legend_below(figure, [axis], 3)
    return figure


def range_test(plt: Any, facts: Facts, curves: Curves) -> Optional[Any]:
    """Loss against the rate, which rises at each step."""
    part = facts.part("lr_range")
    pairs = [(number(rate), number(loss)) for rate, loss in zip(part.get("rates") or (), part.get("losses") or ())]
    known = [(rate, loss) for rate, loss in pairs if rate and loss is not None]
    if len(known) < 2:
        return None
    figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    rates, losses = [rate for rate, _ in known], [loss for _, loss in known]
    axis.plot(rates, losses, color=BLUE, label="loss, mean over ranks")
    for key, words, colour in (("suggestion", "steepest fall", ORANGE), ("lowest_loss_at", "lowest loss", GREEN), ("highest_rate", "training breaks", RED)):
        value = number(part.get(key))
        if value:
            axis.axvline(value, color=colour, linestyle="--", linewidth=1.4, label=f"{words}: {value:.3g}")
    # A loss that explodes would press all that matters into a line at the bottom.
    start, least = losses[0], min(losses)
    axis.set_ylim(least - 0.08 * (start - least or 1), max(start, least) + 1.0 * (start - least or 1))
    axis.set_xscale("log")
    axis.set_xlim(*spread(rates, 1.05))
    plain_log(axis.xaxis, *spread(rates, 1.05))
    axis.set_xlabel("peak learning rate")
    axis.set_ylabel("training loss")
    legend_below(figure, [axis])
    return figure


def noise_over_training(plt: Any, facts: Facts, curves: Curves) -> Optional[Any]:
    """The noise scale along the run it was measured in."""
    noise = curves.noise
    if noise is None or len(noise.curve) < 2:
        return None
    figure, axis = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    samples, values = [row[1] for row in noise.curve], [max(row[2], 1e-9) for row in noise.curve]
    axis.plot(samples, values, "o-", color=BLUE, markersize=3.5, label=f"noise scale at batch {noise.global_batch:,}")
    shown = list(values)
    if noise.value:
        axis.axhline(noise.value, color=ORANGE, linestyle="--", label=f"over the run: {plain(round(noise.value))}")
        shown.append(noise.value)
    if noise.low and noise.high:
        axis.axhspan(noise.low, noise.high, color=ORANGE, alpha=0.15, linewidth=0, label="95 %")
        shown += [noise.low, noise.high]
    if curves.fit is not None and not curves.fit.reason:
        axis.axhline(curves.fit.critical_batch, color=GREEN, linestyle=":", label=f"critical batch, fitted: {plain(round(curves.fit.critical_batch))}")
        shown.append(curves.fit.critical_batch)
    axis.set_yscale("log")
    limits = spread([value for value in shown if value > 1e-6] or [1.0])
    axis.set_ylim(*limits)
    plain_log(axis.yaxis, *limits)
    axis.xaxis.set_major_formatter(lambda value, _: plain(value))
    axis.set_xlabel("samples trained on")
    axis.set_ylabel("noise scale (samples)")
    legend_below(figure, [axis])
    return figure


def all_trials(plt: Any, facts: Facts, curves: Curves) -> Optional[Any]:
    """Every trial by batch and rate, coloured by time; those without the target marked by how they ended."""
    known = [trial for trial in facts.trials if trial.global_batch and trial.peak_lr]
    if not known:
        return None
    numbers = sorted({trial.ranks for trial in known})[:3]
    figure, found = plt.subplots(1, len(numbers), figsize=(max(6.4, 4.6 * len(numbers) + 1), 4.1), sharex=True, sharey=True, squeeze=False, layout="constrained")
    from matplotlib.colors import LogNorm

    x_limits = spread([trial.global_batch for trial in known], 1.4)
    y_limits = spread([trial.peak_lr for trial in known], 1.4)
    times = [trial.seconds for trial in known if trial.is_met and trial.ranks in numbers]
    norm = LogNorm(min(times, default=1.0) * 0.999, max(times, default=1.0) * 1.001)
    painted = None
    for axis, ranks in zip(found[0], numbers):
        mine = [trial for trial in known if trial.ranks == ranks]
        _draw_rules(axis, facts, curves, np.geomspace(*x_limits, 60))
        for chosen, marker, colour, label in (
            ([t for t in mine if t.outcome == DIVERGED], "x", RED, "diverged"),
            ([t for t in mine if t.outcome == FAILED], "+", PURPLE, "failed"),
            ([t for t in mine if not t.is_met and t.outcome not in (DIVERGED, FAILED)], "v", FAINT, "ended before the target"),
        ):
            if chosen:
                axis.plot([t.global_batch for t in chosen], [t.peak_lr for t in chosen], marker, color=colour, markerfacecolor="none", markersize=7, label=label)
        met = [t for t in mine if t.is_met]
        if met:
            painted = axis.scatter(
                [t.global_batch for t in met], [t.peak_lr for t in met], c=[t.seconds for t in met], cmap="viridis_r", norm=norm, s=48,
                edgecolors=FAINT, linewidths=0.6, zorder=3,
            )  # fmt: skip
            best = facts.best(ranks) or met[0]
            axis.plot(best.global_batch, best.peak_lr, "o", markersize=13, markerfacecolor="none", color=ORANGE, markeredgewidth=2, label="best", zorder=4, linestyle="none")
        _log_log(axis, x_limits, y_limits, x_base=2)
        axis.set_xlabel("global batch (samples a step)")
        axis.set_title(show_count(ranks, "rank"))
    found[0][0].set_ylabel("peak learning rate")
    if painted is not None:
        bar = figure.colorbar(painted, ax=list(found[0]), label="time to the target (s)", pad=0.02, fraction=0.05)
        bar.outline.set_visible(False)
        at = ticks(norm.vmin, norm.vmax, most=6)
        bar.set_ticks(at, labels=[plain(value) for value in at], minor=False)
        bar.ax.minorticks_off()
    legend_below(figure, found[0], 5)
    return figure


def _draw_rules(axis: Any, facts: Facts, curves: Curves, grid: np.ndarray) -> None:
    """The linear rule from the script's own setting, and the noise rule through the same point."""
    batch, rate = number(facts.start.get("global_batch")), number(facts.start.get("peak_lr"))
    if not batch or not rate:
        return
    axis.plot(grid, rate * grid / batch, ":", color=FAINT, linewidth=1.3, label="linear rule")
    scale = curves.noise.value if curves.noise and curves.noise.value is not None else curves.critical_batch
    if scale is not None:
        axis.plot(grid, [rate * gain(scale, batch, value) for value in grid], "-.", color=FAINT, linewidth=1.3, label="noise rule")


def step_time(plt: Any, facts: Facts, curves: Curves) -> Optional[Any]:
    """Seconds of a step against the batch, measured and fitted, a line for each number of ranks."""
    if not curves.step_points:
        return None
    figure, axis = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    x_limits = spread([point.global_batch for point in curves.step_points], 1.4)
    shown = [1e3 * point.step_s for point in curves.step_points]
    for ranks, colour in zip(sorted({point.ranks for point in curves.step_points}), FOR_RANKS):
        mine = [(point.global_batch, 1e3 * point.step_s) for point in curves.step_points if point.ranks == ranks]
        axis.plot([batch for batch, _ in mine], [ms for _, ms in mine], "o", color=colour, label=f"{show_count(ranks, 'rank')}, measured")
        if curves.step_seconds is not None:
            grid = np.geomspace(*x_limits, 60)
            values = [1e3 * curves.step_seconds(ranks, batch) for batch in grid]
            axis.plot(grid, values, "-", color=colour, linewidth=1.4)
            shown += values
    if curves.step_seconds is not None:
        axis.plot([], [], "-", color=TEXT, linewidth=1.4, label=f"fitted (median error {100 * curves.step_seconds.median_error:.1f} %)")
    _log_log(axis, x_limits, spread([value for value in shown if value > 0]), x_base=2)
    axis.set_xlabel("global batch (samples a step)")
    axis.set_ylabel("time of a step (ms)")
    legend_below(figure, [axis])
    return figure


def _log_log(axis: Any, x_limits: tuple[float, float], y_limits: tuple[float, float], x_base: int) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlim(*x_limits)
    axis.set_ylim(*y_limits)
    plain_log(axis.xaxis, *x_limits, base=x_base)
    plain_log(axis.yaxis, *y_limits)
