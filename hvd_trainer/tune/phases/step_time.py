"""Seconds of a step against the global batch, for each number of ranks: a few steps at several batches in one job, and a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from hvd_trainer.cost.fit_step import fit_compute
from hvd_trainer.cost.samples import LOCAL, StepSample
from hvd_trainer.cost.step_time import Compute, StepTime
from hvd_trainer.tune.runner import Run
from hvd_trainer.tune.start_points import Base
from hvd_trainer.tune.trial import Caps, Settings, TrialResult

POINTS = 6
STEPS, WARM_STEPS = 14, 4
BEYOND = 2.0  # times the measured range: further out a time is "extrapolated"


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
            "ranks": result.start["ranks"], "global_batch": result.start["global_batch"], "step_s": result.step_s, "steps": result.steps,
            "peak_bytes": result.end.get("peak_bytes"),
        }
        for result in results
        if result is not None and result.step_s and result.start
    ]  # fmt: skip


def fit(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ranks -> the fit over the share of a rank; what ranks say to each other is part of what does not depend on the batch.

    Args:
        measured: from `points`.

    Example:
        >>> found = fit([{"ranks": 2, "global_batch": 2 * m, "step_s": 0.01 + 0.001 * m} for m in (8, 16, 64)])
        >>> round(seconds(found, 2, 256), 4), is_extrapolated(found, 2, 256), seconds(found, 1, 256), is_extrapolated(found, 2, 512)
        (0.138, False, None, True)
    """
    found = {}
    for ranks in sorted({point["ranks"] for point in measured}):
        mine = [point for point in measured if point["ranks"] == ranks]
        samples = [StepSample(LOCAL, max(1, round(point["global_batch"] / ranks)), 1, 1, 1, (point["step_s"],)) for point in mine]
        if len({sample.micro_batch for sample in samples}) < 2:
            continue
        fitted = fit_compute(samples, num_draws=0)
        model, compute = fitted.model, fitted.model.compute
        found[str(ranks)] = {
            "fixed_s": compute.fixed_s + model.update_s, "sample_s": compute.sample_s, "knee": compute.knee, "beyond_s": compute.beyond_s,
            "scatter": fitted.scatter, "rank_batches": list(fitted.micro_batches),
        }  # fmt: skip
    return found


def seconds(fitted: dict[str, Any], ranks: int, global_batch: float) -> Optional[float]:
    """Of a step; None where nothing was fitted for these ranks."""
    values = fitted.get(str(ranks))
    if values is None:
        return None
    return StepTime(Compute(values["fixed_s"], values["sample_s"], values["knee"], values["beyond_s"])).seconds(global_batch / ranks)


def is_extrapolated(fitted: dict[str, Any], ranks: int, global_batch: float) -> bool:
    """Whether a batch is far outside of what was measured."""
    low, high = fitted[str(ranks)]["rank_batches"]
    return not low / BEYOND <= global_batch / ranks <= high * BEYOND
