"""Time to a target against the number of ranks, for ways to choose the global batch (pure)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.noise import gain

MEASURED, PREDICTED, EXTRAPOLATED = "measured", "predicted", "extrapolated"
FIXED_GLOBAL, FIXED_PER_RANK, RECOMMENDED = "fixed global batch", "fixed batch per rank", "recommended batch"
FITS, LINEAR = "N x what fits in memory", "linear rule"
BEYOND = 2  # times the largest measured number of ranks: above it a prediction is an extrapolation
WORTH = 1.5  # of a doubling of the ranks
Steps = Callable[[float], float]
StepSeconds = Callable[[int, int], float]


@dataclass(frozen=True)
class Point:
    """A way to train.

    Args:
        ranks, global_batch: what it is.
        steps: to the target.
        seconds: of training to the target.
        label: MEASURED, PREDICTED or EXTRAPOLATED.
    """

    ranks: int
    global_batch: int
    steps: float
    seconds: float
    label: str


@dataclass(frozen=True)
class Task:
    """What is known about a training: how many steps it takes, and how long one is.

    Args:
        steps: global batch -> steps to the target (a `Hyperbola.steps`, a fit's, a prediction's).
        step_s: (ranks, global batch) -> seconds a step.
        largest: global batch that is considered, in samples.
        most_ranks_measured: the largest number of ranks that `step_s` was measured on.
        measured: (ranks, global batch) -> (steps, seconds) to the target, where it was run.
    """

    steps: Steps
    step_s: StepSeconds
    largest: int
    most_ranks_measured: int
    measured: Mapping[tuple[int, int], tuple[float, float]] = ()  # type: ignore[assignment]

    def point(self, ranks: int, global_batch: int) -> Point:
        """Time to the target of one way: as it was measured, else as predicted.

        Example:
            >>> task = Task(lambda batch: 100 * (1 + 64 / batch), lambda ranks, batch: 0.01 + 0.001 * batch / ranks, 1024, 2, {(2, 64): (190, 8.5)})
            >>> task.point(2, 64)
            Point(ranks=2, global_batch=64, steps=190, seconds=8.5, label='measured')
            >>> [(task.point(ranks, 64).label, round(task.point(ranks, 64).seconds, 2)) for ranks in (4, 8)]
            [('predicted', 5.2), ('extrapolated', 3.6)]
        """
        found = dict(self.measured).get((ranks, global_batch))
        if found is not None:
            return Point(ranks, global_batch, found[0], found[1], MEASURED)
        steps = self.steps(global_batch)
        return Point(ranks, global_batch, steps, steps * self.step_s(ranks, global_batch), self.label(ranks))

    def label(self, ranks: int) -> str:
        """PREDICTED, or EXTRAPOLATED above twice the largest number of ranks that was measured."""
        return EXTRAPOLATED if ranks > BEYOND * self.most_ranks_measured else PREDICTED

    def best_batch(self, ranks: int) -> int:
        """B*(N): the global batch with the shortest predicted time; a multiple of the ranks, so that none waits for another.

        Args:
            ranks: N, >= 1.

        Raises:
            ConfigError: even one sample a rank is more than the largest batch.

        Example:
            >>> task = Task(lambda batch: 100 * (1 + 256 / batch), lambda ranks, batch: 0.001 + 1e-5 * batch / ranks, 8192, 2)
            >>> [task.best_batch(ranks) for ranks in (1, 4, 16)]        # sqrt(256 N 0.001 / 1e-5)
            [160, 320, 640]
        """
        most = self.largest // ranks
        if most < 1:
            raise ConfigError(f"{ranks} ranks and batches of at most {self.largest}", "one sample a rank", "a larger --largest-batch, or fewer ranks")

        def seconds(per_rank: int) -> float:
            return self.steps(per_rank * ranks) * self.step_s(ranks, per_rank * ranks)

        # 3 % apart over the whole range, because a step's time may have a knee; then every number around the best.
        coarse = sorted({round(1.03**power) for power in range(math.floor(math.log(most) / math.log(1.03)) + 1)} | {most})
        at = min(range(len(coarse)), key=lambda index: seconds(coarse[index]))
        low, high = coarse[max(0, at - 1)], coarse[min(len(coarse) - 1, at + 1)]
        stride = max(1, (high - low) // 200)
        return ranks * min({*range(low, high + 1, stride), coarse[at]}, key=lambda per_rank: (seconds(per_rank), per_rank))

    def policies(self, ranks: Sequence[int], global_batch: int) -> dict[str, list[Point]]:
        """Three curves of time against ranks; where a way does not exist for a number of ranks, it has no point.

        Args:
            ranks: to draw, each >= 1.
            global_batch: what one rank, or the script, trains with today: fixed as it is, and fixed on each rank.

        Example:
            >>> task = Task(lambda batch: 100 * (1 + 256 / batch), lambda ranks, batch: 0.001 + 1e-5 * batch / ranks, 8192, 2)
            >>> curves = task.policies([1, 4], 64)
            >>> {name: [(point.global_batch, round(point.seconds, 2)) for point in curve] for name, curve in curves.items()}
            {'fixed global batch': [(64, 0.82), (64, 0.58)], 'fixed batch per rank': [(64, 0.82), (256, 0.33)], 'recommended batch': [(160, 0.68), (320, 0.32)]}
        """
        return {
            FIXED_GLOBAL: [self.point(number, global_batch) for number in ranks if number <= global_batch],
            FIXED_PER_RANK: [self.point(number, number * global_batch) for number in ranks],
            RECOMMENDED: [self.point(number, self.best_batch(number)) for number in ranks if number <= self.largest],
        }

    def usual_ways(self, ranks: int, global_batch: int, micro_batch: Optional[int]) -> dict[str, Optional[Point]]:
        """What people do without a search: keep each rank's batch with N times the rate, or fill the memory of each rank.

        The steps are those of the best rate at that batch: with the linear rule's rate they are more, or none (`linear_excess`).

        Args:
            ranks: N.
            global_batch: what one rank, or the script, trains with today.
            micro_batch: samples that fit on a rank; None: not known, then there is no point.

        Example:
            >>> task = Task(lambda batch: 100 * (1 + 256 / batch), lambda ranks, batch: 0.001 + 1e-5 * batch / ranks, 8192, 2)
            >>> found = task.usual_ways(2, 64, 4096)
            >>> [(name, point.global_batch, round(point.seconds, 2)) for name, point in found.items()]
            [('linear rule', 128, 0.49), ('N x what fits in memory', 8192, 4.33)]
            >>> task.usual_ways(2, 64, None)["N x what fits in memory"] is None
            True
        """
        fits = None if micro_batch is None else self.point(ranks, ranks * micro_batch)
        return {LINEAR: self.point(ranks, ranks * global_batch), FITS: fits}


def worth_it(points: Sequence[Point], least_gain: float = WORTH) -> Point:
    """The largest number of ranks that is worth it: up to there every doubling saves time by the factor or more.

    Steps that are not doublings are judged by what they gain for each doubling.

    Args:
        points: of one policy, in any order.
        least_gain: of a doubling, above 1.

    Raises:
        ConfigError: no points.

    Example:
        >>> points = [Point(n, 64, 100, seconds, PREDICTED) for n, seconds in ((1, 10.0), (2, 6.0), (4, 5.0), (8, 2.0))]
        >>> worth_it(points).ranks, worth_it(points, least_gain=1.1).ranks
        (2, 8)
    """
    if not points:
        raise ConfigError("no number of ranks with a time", "at least one")
    ordered = sorted(points, key=lambda point: point.ranks)
    best = ordered[0]
    for point in ordered[1:]:
        doublings = math.log2(point.ranks / best.ranks)
        if doublings and best.seconds / point.seconds < least_gain**doublings:
            break
        best = point
    return best


def speed_up_caution(gained: float, times_ranks: float, trials: Sequence[int]) -> str:
    """What to keep in mind with a measured speed-up; "" where nothing speaks against it.

    Args:
        gained: times as fast.
        times_ranks: how many times as many ranks.
        trials: that each of the two times rests on.

    Example:
        >>> speed_up_caution(1.7, 2, [3, 3]), speed_up_caution(1.7, 2, [1, 3])
        ('', 'one trial of one of them, no spread known')
        >>> speed_up_caution(2.4, 2, [1, 1])
        'one trial each, no spread known; more than 2 times on 2 times the ranks: by another batch or rate, or by chance'
    """
    single = sum(number == 1 for number in trials)
    said = ["one trial each, no spread known" if single == len(trials) else "one trial of one of them, no spread known"] if single else []
    if gained > times_ranks:
        said.append(f"more than {times_ranks:g} times on {times_ranks:g} times the ranks: by another batch or rate, or by chance")
    return "; ".join(said)


def linear_excess(global_batch: float, reference_batch: float, noise_scale: float) -> float:
    """How many times the rate of the noise rule the linear rule asks for: well above 1, it diverges or wastes its batch.

    Args:
        global_batch, reference_batch: samples, > 0.
        noise_scale: in samples.

    Example:
        >>> linear_excess(64, 64, 200.0), round(linear_excess(1024, 32, 200.0), 2)
        (1.0, 5.28)
    """
    return global_batch / reference_batch / gain(noise_scale, reference_batch, global_batch)
