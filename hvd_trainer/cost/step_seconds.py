"""Seconds of a step from whole steps that were measured, for any number of ranks and batch (pure).

`step_time` builds a step from parts that are measured one by one; here only the steps of runs are known, as `tune` has them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

SOFT = 0.03  # errors well above 3 % count linearly: one run on a busy machine must not bend the fit
ROUNDS, CLOSE = 30, 1e-7  # of least squares with new weights, until they change no more than this
# A knee is one more term: it must take away this share of the error that there is, and have sizes on both sides.
KNEE_GAIN, KNEE_SIZES, WORTH_A_KNEE = 0.5, 5, 0.01
BEYOND = 2.0  # times the measured range: further out a time is an extrapolation


@dataclass(frozen=True)
class StepPoint:
    """A measured step.

    Args:
        ranks, global_batch: what it was, >= 1.
        step_s: median seconds of a run, > 0.
        spread_s: how far the steps of that run lie apart (between their quartiles); None: not known.
    """

    ranks: int
    global_batch: int
    step_s: float
    spread_s: Optional[float] = None


@dataclass(frozen=True)
class Terms:
    """`fixed + sample m + beyond max(0, m - knee) + ring 2 (N - 1) / N + rank (N - 1)`, with m samples on each of N ranks.

    Args:
        fixed_s, sample_s: of a rank.
        knee: samples of a rank from which on one takes `beyond_s` more (less, where it is negative); 0: none.
        beyond_s: see there.
        ring_s: of communication, what a ring sends.
        rank_s: of communication, for each further rank; 0 where fewer than three numbers of ranks were measured.
    """

    fixed_s: float
    sample_s: float
    knee: float = 0.0
    beyond_s: float = 0.0
    ring_s: float = 0.0
    rank_s: float = 0.0

    def seconds(self, ranks: int, global_batch: float) -> float:
        """Of one step.

        Example:
            >>> Terms(0.01, 0.001, 40, 0.002).seconds(1, 32), Terms(0.01, 0.001, 40, 0.002, 0.005).seconds(2, 100)
            (0.042, 0.085)
        """
        m = global_batch / ranks
        beyond_s = self.beyond_s * max(0.0, m - self.knee) if self.knee else 0.0
        return self.fixed_s + self.sample_s * m + beyond_s + self.ring_s * 2 * (ranks - 1) / ranks + self.rank_s * (ranks - 1)


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step: a number of ranks that was measured at two batches has terms of its own, others those of all.

    Args:
        all_ranks: through all points.
        own: ranks -> terms through its points alone.
        points: that it was made from.
    """

    all_ranks: Terms
    own: dict[int, Terms]
    points: tuple[StepPoint, ...]
    _corrections: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, ranks: int, global_batch: float) -> float:
        """Seconds of one step.

        A batch whose own measurement lies off the fit by more than its spread counts as it was measured: what a batch does to
        caches is in no term. Between it and the next measured batches the difference fades.
        """
        fitted_s = self.fitted(ranks, global_batch)
        if ranks not in self._corrections:
            return fitted_s
        batches, logs = self._corrections[ranks]
        return fitted_s * math.exp(float(np.interp(math.log(global_batch), batches, logs)))

    def fitted(self, ranks: int, global_batch: float) -> float:
        """By the terms alone."""
        return self.own.get(ranks, self.all_ranks).seconds(ranks, global_batch)

    def is_extrapolated(self, ranks: int, global_batch: float) -> bool:
        """Whether these ranks were not measured at two batches, or this batch is far outside of those."""
        sizes = [point.global_batch for point in self.points if point.ranks == ranks]
        return ranks not in self.own or not min(sizes) / BEYOND <= global_batch <= max(sizes) * BEYOND

    @property
    def off(self) -> dict[tuple[int, int], float]:
        """(ranks, batch) -> measured / fitted, of the batches that count as measured."""
        return {
            (ranks, round(math.exp(batch))): math.exp(log)
            for ranks, (batches, logs) in self._corrections.items() for batch, log in zip(batches, logs) if log
        }  # fmt: skip

    @property
    def median_error(self) -> float:
        """Of the absolute relative errors of the fit."""
        return float(np.median([abs(self.fitted(point.ranks, point.global_batch) / point.step_s - 1) for point in self.points]))

    def as_rows(self) -> dict[str, dict[str, Any]]:
        """For JSON: the terms of each measured number of ranks."""
        sizes = {ranks: [point.global_batch / ranks for point in self.points if point.ranks == ranks] for ranks in self.own}
        return {
            str(ranks): {"fixed_s": terms.fixed_s, "sample_s": terms.sample_s, "knee": terms.knee, "beyond_s": terms.beyond_s,
                         "rank_batches": [min(sizes[ranks]), max(sizes[ranks])],
                         "off": {str(batch): factor for (number, batch), factor in self.off.items() if number == ranks}}
            for ranks, terms in self.own.items()
        }  # fmt: skip


def fit_step_seconds(points: Sequence[StepPoint]) -> Optional[StepSeconds]:
    """A step's time from measured ones: least squares of relative errors in which large ones count little, no slope below 0.

    Args:
        points: several numbers of ranks, or what more ranks cost is not known; several runs of a batch are several points.

    Returns:
        The fit; None where there are fewer than three points, or one batch a rank alone.

    Example:
        >>> at = ((1, 32, 0.042), (1, 64, 0.074), (2, 64, 0.047), (2, 128, 0.079))
        >>> found = fit_step_seconds([StepPoint(*point) for point in at])
        >>> round(found.all_ranks.fixed_s, 4), round(found.all_ranks.ring_s, 4), round(found(2, 256), 4), round(found(4, 128), 4)
        (0.01, 0.005, 0.143, 0.0495)
        >>> slow = fit_step_seconds([StepPoint(1, 2**k, 0.001 * 2**k * (1.5 if k == 5 else 1.0), 2e-5 * 2**k) for k in range(9)])
        >>> [round(slow(1, batch), 3) for batch in (16, 32, 64)], {at: round(factor, 1) for at, factor in slow.off.items()}
        ([0.016, 0.048, 0.064], {(1, 32): 1.5})
    """
    points = tuple(points)
    if len(points) < 3 or len({point.global_batch / point.ranks for point in points}) < 2:
        return None
    own = {}
    for ranks in sorted({point.ranks for point in points}):
        mine = [point for point in points if point.ranks == ranks]
        if len({point.global_batch for point in mine}) >= 2:
            own[ranks] = _fit(mine)
    found = StepSeconds(_fit(points), own, points)
    return StepSeconds(found.all_ranks, own, points, {ranks: _correction(found, ranks) for ranks in own})


def _correction(found: StepSeconds, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """log(batch) and log(measured / fitted) of these ranks, 0 where the difference is within the batch's own spread."""
    by_batch: dict[int, list[StepPoint]] = {}
    for point in found.points:
        if point.ranks == ranks:
            by_batch.setdefault(point.global_batch, []).append(point)
    logs = []
    for batch, runs in sorted(by_batch.items()):
        # Other work on the machine makes a run slower and never faster: the fastest run is the batch's.
        first, *others = sorted(runs, key=lambda point: point.step_s)
        known = [*([] if first.spread_s is None else [first.spread_s]), *(other.step_s - first.step_s for other in others[:1])]
        fitted_s = found.fitted(ranks, batch)
        logs.append(math.log(first.step_s / fitted_s) if known and abs(first.step_s - fitted_s) > max(known) + 1e-6 * fitted_s else 0.0)
    return np.log(sorted(by_batch)), np.array(logs)


def _fit(points: Sequence[StepPoint]) -> Terms:
    sizes = sorted({point.global_batch / point.ranks for point in points})
    best, least = _solve(points, 0.0)
    if len(sizes) >= KNEE_SIZES and least > len(points) * WORTH_A_KNEE**2:
        tried = [_solve(points, knee) for knee in sizes[2:-2]]
        terms, cost = min(tried, key=lambda each: each[1])
        best = terms if cost < KNEE_GAIN * least else best
    return best


def _solve(points: Sequence[StepPoint], knee: float) -> tuple[Terms, float]:
    """The best terms and their cost."""
    ranks = np.array([point.ranks for point in points], dtype=float)
    m = np.array([point.global_batch for point in points]) / ranks
    below = np.minimum(m, knee) if knee else m
    features = np.stack([np.ones(len(m)), below, m - below, 2 * (ranks - 1) / ranks, ranks - 1], axis=1)
    features /= np.array([[point.step_s] for point in points])
    numbers = len(set(ranks))
    columns = [0, 1, *([2] if knee else []), *([3] if numbers > 1 else []), *([4] if numbers > 2 else [])]
    weights = np.ones(len(points))
    for _ in range(ROUNDS):
        found = _without_negative_terms(features, columns, np.sqrt(weights))
        errors = features @ found - 1
        before, weights = weights, 1 / np.sqrt(1 + (errors / SOFT) ** 2)
        if np.max(np.abs(weights - before)) < CLOSE:
            break
    cost = float(np.sum(2 * SOFT**2 * (np.sqrt(1 + (errors / SOFT) ** 2) - 1)))
    fixed_s, sample_s, above_s, ring_s, rank_s = (float(value) for value in found)
    return Terms(fixed_s, sample_s, knee, above_s - sample_s if knee else 0.0, ring_s, rank_s), cost


def _without_negative_terms(features: np.ndarray, columns: Sequence[int], roots: np.ndarray) -> np.ndarray:
    """Least squares with weights, exactly: of five terms there are 31 choices."""
    best, least = np.zeros(features.shape[1]), math.inf
    best[columns] = np.linalg.lstsq(features[:, columns] * roots[:, None], roots, rcond=None)[0]
    if np.all(best >= 0):  # nothing keeps it from being the best of all choices
        return best
    for size in range(1, len(columns)):
        for chosen in itertools.combinations(columns, size):
            table = features[:, chosen] * roots[:, None]
            solved = np.linalg.lstsq(table, roots, rcond=None)[0]
            cost = float(np.sum((table @ solved - roots) ** 2))
            if np.all(solved >= 0) and cost < least:
                best, least = np.zeros(features.shape[1]), cost
                best[list(chosen)] = solved
    return best
