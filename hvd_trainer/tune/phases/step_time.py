"""Seconds of a step against the global batch, for each number of ranks: a few steps at several batches in one job, and a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from hvd_trainer.cost.step_seconds import StepPoint, StepSeconds, fit_step_seconds
from hvd_trainer.tune.runner import Run
from hvd_trainer.tune.start_points import Base
from hvd_trainer.tune.trial import Caps, Settings, TrialResult

POINTS = 6
STEPS, WARM_STEPS = 14, 4


def batches(ranks: int, smallest: int, largest: int, count: int = POINTS) -> list[int]:
    """Global batches at equal factors, each a multiple of the ranks.

    Example:
        >>> batches(2, 16, 2048), batches(3, 8, 8), batches(2, 16, 20)
        ([16, 42, 112, 294, 776, 2048], [9], [16, 18, 20])
    """
    low, high = (max(1, round(batch / ranks)) for batch in (smallest, largest))
    found = {round(low * (high / low) ** (number / max(1, count - 1))) for number in range(count)}
    return [ranks * each for each in sorted(found)]


def runs(ranks: int, base: Base, sizes: Sequence[int], train_s: float) -> list[Run]:
    """What to run, the smallest batch first: the peak of memory only rises.

    Args:
        ranks: processes.
        base: the script.
        sizes: global batches.
        train_s: seconds for each at most.
    """
    watch = {"metric": "", "warm_steps": WARM_STEPS}
    return [Run(Settings(ranks, batch, base.peak_lr), Caps(steps=STEPS, train_s=train_s), watch=watch) for batch in sizes]


def points(results: Sequence[Optional[TrialResult]]) -> list[dict[str, Any]]:
    """The measured points, without runs that failed."""
    return [
        {
            "ranks": result.start["ranks"], "global_batch": result.start["global_batch"], "step_s": result.step_s,
            "spread_s": result.end.get("spread_s"), "steps": result.steps, "peak_bytes": result.end.get("peak_bytes"),
        }
        for result in results
        if result is not None and result.step_s and result.start
    ]  # fmt: skip


def fit(measured: Sequence[dict[str, Any]]) -> Optional[StepSeconds]:
    """The model of `cost.step_seconds` through points; None: too few.

    Args:
        measured: from `points`.

    Example:
        >>> found = fit([{"ranks": 2, "global_batch": 2 * m, "step_s": 0.01 + 0.001 * m} for m in (8, 16, 64)])
        >>> round(found(2, 256), 4), found.is_extrapolated(2, 256), found.is_extrapolated(2, 512)
        (0.138, False, True)
    """
    return fit_step_seconds([StepPoint(point["ranks"], point["global_batch"], point["step_s"], point.get("spread_s")) for point in measured])
