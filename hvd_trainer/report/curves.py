"""Steps against batch and time against ranks, from the facts: fitted where there is enough, else predicted, else why not (pure)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.cost.fit_hyperbola import HyperbolaFit, compare, fit_hyperbola
from hvd_trainer.cost.policies import Point, Task
from hvd_trainer.cost.step_seconds import StepPoint, StepSeconds, fit_step_seconds
from hvd_trainer.cost.steps_to_target import PredictedCurve, from_noise
from hvd_trainer.errors import ConfigError
from hvd_trainer.report.facts import Facts, Trial, number, whole

NEIGHBOURS = math.sqrt(2)  # batches of one such interval count as one: a search draws them at random
LEAST_BATCHES = 3
MORE_RANKS = 8  # times the largest number that was measured: as far as curves are drawn


@dataclass(frozen=True)
class Noise:
    """The gradient noise scale of a run.

    Args:
        global_batch: of the run.
        value: in samples, over the run; None: undetermined.
        low, high: 95 % interval.
        curve: (step, samples, noise scale) along the run.
    """

    global_batch: int
    value: Optional[float]
    low: Optional[float]
    high: Optional[float]
    curve: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Curves:
    """What the plots and the sentences are made of.

    Args:
        optimizer: of these curves, that of the best trial.
        points: the trial with the fewest steps at each batch.
        fit: hyperbola through them; None: `why_no_fit` says why.
        predicted: from the noise scale; None: `why_no_prediction`.
        noise: None: not measured.
        step_seconds: None: `why_no_time`.
        task: for the policies; None: `why_no_time`.
    """

    optimizer: str
    points: tuple[Trial, ...]
    fit: Optional[HyperbolaFit]
    predicted: Optional[PredictedCurve]
    noise: Optional[Noise]
    step_seconds: Optional[StepSeconds]
    step_points: tuple[StepPoint, ...]
    task: Optional[Task]
    why_no_fit: str = ""
    why_no_prediction: str = ""
    why_no_time: str = ""

    @property
    def best_known(self) -> Optional[Any]:
        """The fit where its critical batch is determined, else the prediction, else whatever fit there is."""
        if self.fit is not None and (not self.fit.reason or self.predicted is None):
            return self.fit
        return self.predicted

    @property
    def critical_batch(self) -> Optional[float]:
        """In samples: fitted where that is determined, else the noise scale."""
        if self.fit is not None and not self.fit.reason:
            return self.fit.critical_batch
        return None if self.predicted is None else self.predicted.critical_batch

    def policies(self, facts: Facts) -> dict[str, list[Point]]:
        """Three curves of time against ranks; empty where there is no task."""
        batch = number(facts.start.get("global_batch")) or (self.points[0].global_batch if self.points else None)
        if self.task is None or batch is None:
            return {}
        most = MORE_RANKS * self.task.most_ranks_measured
        doublings = [2**power for power in range(int(math.log2(most)) + 1)]
        return self.task.policies(sorted({*doublings, *facts.ranks}), int(batch))


def curves(facts: Facts) -> Curves:
    """All that can be fitted or predicted from a report."""
    met = [trial for trial in facts.trials if trial.is_met and trial.global_batch]
    best = min(met, key=lambda trial: trial.seconds, default=None)
    optimizer = best.optimizer if best else str(facts.start.get("optimizer", ""))
    # By the median over seeds: the fewest steps of several would be those of the lucky one.
    typical = [dataclasses.replace(trial, steps=facts.steps(trial)) for trial in met if facts.seeds_of(trial)[0] is trial]
    points = best_of_each_batch([trial for trial in typical if trial.optimizer == optimizer])
    fit, why_no_fit = None, f"{show_count(len(points), 'batch')} came to the target, and a fit needs {LEAST_BATCHES}"
    if len(points) >= LEAST_BATCHES:
        fit = fit_hyperbola([float(point.global_batch or 1) for point in points], [float(point.steps) for point in points])
    noise = _noise(facts)
    predicted, why_no_prediction = _predicted(facts, noise, points)
    step_points = _step_points(facts)
    step_seconds = fit_step_seconds(step_points)
    found = Curves(optimizer, tuple(points), fit, predicted, noise, step_seconds, tuple(step_points), None, why_no_fit, why_no_prediction)
    task, why_no_time = _task(facts, found, met)
    return Curves(**{**vars(found), "task": task, "why_no_time": why_no_time})


def best_of_each_batch(trials: Sequence[Trial]) -> list[Trial]:
    """The trial with the fewest steps of each batch, and of batches that are neighbours; ranks do not matter to steps."""
    found: dict[int, Trial] = {}
    for trial in trials:
        place = round(math.log(trial.global_batch or 1) / math.log(NEIGHBOURS))
        if place not in found or trial.steps < found[place].steps:
            found[place] = trial
    return sorted(found.values(), key=lambda trial: trial.global_batch or 0)


def _noise(facts: Facts) -> Optional[Noise]:
    part = facts.part("noise")
    batch = number(part.get("global_batch"))
    if batch:
        listed = part.get("curve")
        rows = [tuple(number(value) for value in row) for row in listed if isinstance(row, list) and len(row) >= 3] if isinstance(listed, list) else []
        curve = tuple(row[:3] for row in rows if None not in row[:3])
        return Noise(int(batch), number(part.get("noise_scale")), number(part.get("low")), number(part.get("high")), curve)  # type: ignore[arg-type]
    along = [trial for trial in facts.trials if trial.noise_scale is not None and trial.is_met and trial.global_batch]
    trial = max(along, key=lambda trial: trial.samples, default=None)
    return None if trial is None else Noise(trial.global_batch or 1, trial.noise_scale, None, None, ())


def _predicted(facts: Facts, noise: Optional[Noise], points: Sequence[Trial]) -> tuple[Optional[PredictedCurve], str]:
    """From the prediction's own rows, which lie on one curve; else from the noise scale and the nearest trial."""
    rows = [(number(row.get("global_batch")), number(row.get("steps"))) for row in facts.entries("prediction", "rows")]
    known = sorted({(batch, steps) for batch, steps in rows if batch and steps})
    if len({batch for batch, _ in known}) >= 2:
        fitted = fit_hyperbola([batch for batch, _ in known], [steps for _, steps in known])
        at = noise.global_batch if noise else known[len(known) // 2][0]
        low, high = (noise.low, noise.high) if noise and noise.value is not None else (None, None)
        return PredictedCurve(fitted.curve, at, fitted.steps(at), low, high), ""
    if noise is None:
        return None, "the gradient noise scale was not measured"
    if noise.value is None:
        return None, "the gradient noise scale is undetermined"
    near = min(points, key=lambda point: abs(math.log((point.global_batch or 1) / noise.global_batch)), default=None)
    if near is None:
        return None, "no trial came to the target, so that the steps at one batch are not known"
    return from_noise(float(near.global_batch or 1), near.steps, noise.value, noise.low, noise.high), ""


def _step_points(facts: Facts) -> list[StepPoint]:
    """What was measured apart from trials, else the trials."""
    rows = facts.entries("step_time", "points")
    read = [(whole(row.get("ranks")), whole(row.get("global_batch")), number(row.get("step_s")), number(row.get("spread_s"))) for row in rows]
    found = [StepPoint(ranks, batch, seconds, spread) for ranks, batch, seconds, spread in read if ranks and batch and seconds and seconds > 0]
    if found:
        return found
    return [StepPoint(trial.ranks, trial.global_batch, trial.step_s) for trial in facts.trials if trial.global_batch and trial.step_s]


def _task(facts: Facts, found: Curves, met: Sequence[Trial]) -> tuple[Optional[Task], str]:
    if found.best_known is None:
        return None, f"steps to the target are not known for other batches: {found.why_no_fit}, and {found.why_no_prediction}"
    if found.step_seconds is None:
        return None, "seconds of a step are not known for other batches: three measured points with two batches a rank are needed"
    rows = [number(row.get("global_batch")) for row in facts.entries("prediction", "rows")]
    largest = max([*(trial.global_batch or 1 for trial in facts.trials), *(int(batch) for batch in rows if batch)])
    measured: dict[tuple[int, int], tuple[float, float]] = {}
    for trial in sorted(met, key=lambda trial: -facts.seconds(trial)):  # the fastest last: it stays
        if math.isfinite(facts.seconds(trial)):
            measured[(trial.ranks, trial.global_batch or 1)] = (facts.steps(trial), facts.seconds(trial))
    most = max(point.ranks for point in found.step_points)
    return Task(found.best_known.steps, found.step_seconds, largest, most, measured), ""


def off_by(curves: Curves) -> str:
    """How far the prediction lies from what was measured at the batches that were; "" where one of them is missing.

    The batch that the prediction goes through is left out.
    """
    if curves.predicted is None:
        return ""
    others = [point for point in curves.points if abs(math.log((point.global_batch or 1) / curves.predicted.batch)) > 0.1]
    try:
        return str(compare([curves.predicted.steps(point.global_batch or 1) for point in others], [point.steps for point in others]))
    except ConfigError:
        return ""
