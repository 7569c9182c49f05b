"""Whose turn it is where several numbers of ranks share a budget, and how many seconds a turn may take (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

FIRST, PREDICTION, ROWS, SAMPLES, DONE = range(5)  # stages: no number of ranks enters one that comes before all others have left


@dataclass(frozen=True)
class Standing:
    """How far one number of ranks has come.

    Args:
        ranks: processes.
        stage: of what it would run next.
        spent_s: seconds of what it got beyond that which all get anyway.
        needs_s: a turn with less is not worth its start.
    """

    ranks: int
    stage: int
    spent_s: float = 0.0
    needs_s: float = 0.0


@dataclass(frozen=True)
class Turn:
    """What may run now.

    Args:
        ranks: processes.
        stage: as of the `Standing`.
        room_s: seconds that it may take, its start included.
    """

    ranks: int
    stage: int
    room_s: float


def fair_s(mine_s: float, others_s: Sequence[float], left_s: float) -> float:
    """Seconds of the budget for one of several, so that in the end all have spent the same, as far as that can still be.

    Args:
        mine_s: spent by this one.
        others_s: spent by each of the others.
        left_s: for all together.

    Example:
        >>> fair_s(0.0, [0.0], 20.0), fair_s(10.0, [4.0], 20.0), fair_s(0.0, [90.0], 20.0), fair_s(90.0, [0.0], 20.0)
        (10.0, 7.0, 20.0, 0.0)
    """
    spent = sorted([mine_s, *others_s])
    level = spent[0]
    for count in range(1, len(spent) + 1):  # as water rises over steps: the lowest ones first
        level = (left_s + sum(spent[:count])) / count
        if count == len(spent) or level <= spent[count]:
            break
    return max(0.0, level - mine_s)


def next_turn(standings: Sequence[Standing], left_s: float) -> Optional[Turn]:
    """The earliest stage first; within it who has spent least, and of those the most ranks.

    One whose part of the budget is too small for a turn is passed over: then the others may use it. Where no part is enough
    for one, what is left goes to the first, as far as it fits there.

    Args:
        standings: of all numbers of ranks.
        left_s: of the budget, for trials.

    Returns:
        None where nothing is left to do, or no time for any of it.

    Example:
        >>> two, one = Standing(2, ROWS, 8.0, 5.0), Standing(1, PREDICTION, 20.0, 5.0)
        >>> next_turn([two, one], 100.0)
        Turn(ranks=1, stage=1, room_s=44.0)
        >>> next_turn([two, Standing(1, ROWS, 20.0, 5.0)], 6.0), next_turn([two, one], 4.0)
        (Turn(ranks=2, stage=2, room_s=6.0), None)
    """
    waiting = sorted((each for each in standings if each.stage != DONE and each.needs_s < left_s), key=lambda each: (each.stage, each.spent_s, -each.ranks))
    for mine in waiting:
        room_s = fair_s(mine.spent_s, [other.spent_s for other in waiting if other is not mine], left_s)
        if room_s > mine.needs_s:
            return Turn(mine.ranks, mine.stage, room_s)
    return Turn(waiting[0].ranks, waiting[0].stage, left_s) if waiting else None
