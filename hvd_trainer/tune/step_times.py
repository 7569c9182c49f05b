"""What a step takes by the fit over all trials: one that ran while the machine was busy with something else must not decide.

Disturbances only ever make a step slower. So a trial counts with its own median where that is below the fit, and with the fit else; but
where its batch was slower than the fit by more than its steps scatter, as some batches are, with what was measured there.
What ran beside other jobs and has no fit of its own counts as if those had slowed it as much as they slowed the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Optional

from hvd_trainer.cost.step_seconds import StepSeconds
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.phases import step_time
from hvd_trainer.tune.trial import CAP, LEAST_STEPS, MET, SCRIPT_END

LEAST_TRIALS = 5  # and of them different batches
LEAST_BATCHES = 3


def with_fits(records: Sequence[Record], points: Sequence[dict[str, Any]] = ()) -> list[Record]:
    """The same trials, each with what its step takes by the fit over those with its ranks and optimizer.

    Args:
        records: all trials.
        points: measured apart from trials, with the script's optimizer (see `step_time.points`).

    Returns:
        In the same order; without a fit where there are too few.
    """
    groups: dict[tuple[int, Optional[str]], list[Record]] = {}
    for record in records:
        groups.setdefault((record.settings.ranks, record.settings.optimizer), []).append(record)
    fits = {key: _fit(key, group, points) for key, group in groups.items()}
    found = []
    for record in records:
        ranks, batch = record.settings.ranks, record.result.start.get("global_batch")
        fitted = fits[ranks, record.settings.optimizer]
        seconds = fitted(ranks, batch) if fitted is not None and batch and record.result.step_s else None
        found.append(replace(record, result=replace(record.result, fitted_step_s=seconds)))
    slower = slowness(found, 1)
    return [
        replace(record, result=replace(record.result, fitted_step_s=record.result.step_s / slower))
        if record.result.shared_by > 1 and record.result.step_s and record.result.fitted_step_s is None
        else record
        for record in found
    ]


def slowness(records: Sequence[Record], jobs: int) -> float:
    """How many times longer a step takes beside other jobs than alone, by the fits; 1 where it is not known and there is one job.

    Args:
        records: of `with_fits`.
        jobs: at once; the most that they can slow each other down, where nothing was measured.
    """
    shared = [r.result for r in records if r.result.shared_by > 1 and r.result.step_s and r.result.fitted_step_s]
    return max(1.0, statistics.median(result.step_s / result.fitted_step_s for result in shared)) if shared else float(jobs)


def _fit(key: tuple[int, Optional[str]], records: Sequence[Record], points: Sequence[dict[str, Any]]) -> Optional[StepSeconds]:
    ranks, optimizer = key
    # What diverged has made few steps, and those not at its batch's usual speed: NaN and denormal numbers are slow.
    good = [r.result for r in records if r.result.shared_by == 1 and r.result.outcome in (MET, CAP, SCRIPT_END)]
    measured = step_time.points([result for result in good if result.steps >= LEAST_STEPS])
    if optimizer is None:
        measured += [point for point in points if point["ranks"] == ranks]
    if len(measured) < LEAST_TRIALS or len({point["global_batch"] for point in measured}) < LEAST_BATCHES:
        return None
    return step_time.fit(measured)
