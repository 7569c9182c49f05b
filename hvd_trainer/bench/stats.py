"""From the samples of all ranks and rounds to medians, ratios and their spread (pure; standard library alone)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """A number with what the rounds said.

    Args:
        mid: median over the rounds.
        low, high: smallest and largest.
    """

    mid: float
    low: float
    high: float

    def text(self, digits: int = 3) -> str:
        """ "1.25 (1.21..1.31)", with so many significant digits.

        Example:
            >>> Spread(1.25, 1.2149, 12.3456).text()
            '1.25 (1.21..12.3)'
        """
        return f"{significant(self.mid, digits)} ({significant(self.low, digits)}..{significant(self.high, digits)})"


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, never as 1e+02.

    Example:
        >>> significant(123.456), significant(0.0123456), significant(2.0), significant(0)
        ('123', '0.0123', '2.00', '0.00')
    """
    if not math.isfinite(value):
        return str(value)
    exponent = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits - 1 - exponent)}f}"


def over_rounds(values: Sequence[float]) -> Spread:
    """Median and range.

    Example:
        >>> over_rounds([3.0, 1.0, 2.0])
        Spread(mid=2.0, low=1.0, high=3.0)
    """
    return Spread(median(values), min(values), max(values))


def step_time(ranks: Sequence[Sequence[float]]) -> float:
    """The step time of one launch: the slowest rank's own median.

    Not the median of each step's slowest rank: columns that wait for each other in every step would look as before,
    but compute-only would be charged for every hiccup of either rank, although its ranks wait for nobody; the bound
    would come out too high, and everybody too good beside it.

    Args:
        ranks: for each rank, the times of its steps.

    Example:
        >>> step_time([[1.0, 9.0, 1.0], [2.0, 2.0, 9.0]])
        2.0
    """
    return max(median(samples) for samples in ranks)


def column_times(times: Mapping[str, Mapping[str, Sequence]], workload: str, column: str) -> list[float]:
    """The step time of each round of one column, from all samples; [] where it failed."""
    return [step_time(ranks) for ranks in times.get(workload, {}).get(column, [])]


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Round by round, so that what slows a whole round cancels.

    Example:
        >>> ratios([2.0, 4.4, 3.0], [1.0, 2.0, 1.0])
        Spread(mid=2.2, low=2.0, high=3.0)
    """
    return over_rounds([a / b for a, b in zip(numerators, denominators)])


def disagreement(losses: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> float:
    """Largest difference between two columns' losses, relative to the larger of the loss and 0.01.

    Args:
        losses, reference: for each rank, the losses of the same steps.

    Example:
        >>> disagreement([[2.0, 1.0]], [[2.0, 1.25]])
        0.2
        >>> disagreement([[float("nan")]], [[2.0]])
        inf
    """
    worst = 0.0
    for mine, theirs in zip(losses, reference):
        for a, b in zip(mine, theirs):
            difference = abs(a - b) / max(abs(a), abs(b), 0.01)
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst
