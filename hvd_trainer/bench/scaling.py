"""`bench scale`: what each further rank brings (pure, but for the rounds that it starts)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hvd_trainer.bench import stats
from hvd_trainer.bench.columns import Column, rotated
from hvd_trainer.bench.rounds import Measured, Plan, Say, Starter, one_round
from hvd_trainer.bench.stats import Spread
from hvd_trainer.bench.workloads import RANK_BATCH, Workload
from hvd_trainer.errors import ConfigError

WEAK, STRONG = "weak", "strong"


def workloads(base: Workload, most_ranks: int, global_batch: int | None = None) -> list[Workload]:
    """The two ways to grow.

    Args:
        base: what is trained.
        most_ranks: the largest number of ranks.
        global_batch: of the strong way, at least one sample a rank; None: what the weak way has at `most_ranks`.

    Raises:
        ConfigError: fewer samples than ranks.

    Example:
        >>> [(w.name, w.rank_batch, w.global_batch) for w in workloads(Workload("mlp", ""), 4)]
        [('weak', 32, 0), ('strong', 32, 128)]
    """
    batch = RANK_BATCH * most_ranks if global_batch is None else global_batch
    if batch < most_ranks:
        raise ConfigError(f"--global-batch {batch}", f"at least one sample for each of {most_ranks} ranks")
    model = "" if base.script else base.name
    return [replace(base, name=WEAK, model=model), replace(base, name=STRONG, model=model, global_batch=batch)]


def measure(plan: Plan, ranks: Sequence[int], starter: Callable[[int], Starter], say: Say) -> dict[int, Measured]:
    """All numbers of ranks in every round, in an order that rotates.

    Args:
        plan: of one number of ranks; its own number is not used.
        ranks: how many, each once.
        starter: for a number of ranks, what starts a launch of so many.
        say: gets one line a launch.
    """
    found = {num_ranks: Measured(num_ranks) for num_ranks in ranks}
    for number in range(plan.num_rounds):
        for num_ranks in rotated(list(ranks), number):
            say(f"{num_ranks} rank{'s' if num_ranks > 1 else ''}:")
            one_round(replace(plan, num_ranks=num_ranks), number, found[num_ranks], starter(num_ranks), say)
    return found


@dataclass(frozen=True)
class Point:
    """One column at one number of ranks, in one of the two ways.

    Args:
        column: its name.
        way: "weak" or "strong".
        num_ranks: how many.
        ms: milliseconds a step.
        speedup: samples a second over those of the smallest number of ranks.
        efficiency: speedup / how many times as many ranks.
    """

    column: str
    way: str
    num_ranks: int
    ms: Spread
    speedup: Spread
    efficiency: Spread


def points(found: dict[int, Measured], columns: Sequence[Column]) -> list[Point]:
    """Speed-up and efficiency, round by round; a column that failed somewhere is left out there."""
    result = []
    first = min(found)
    for way in (WEAK, STRONG):
        for column in columns:
            one = stats.column_times(found[first].times, way, column.name)
            for num_ranks in sorted(found):
                mine = stats.column_times(found[num_ranks].times, way, column.name)
                if not (one and mine):
                    continue
                more = num_ranks / first
                gain = more if way == WEAK else 1.0
                speedup = stats.over_rounds([gain * a / b for a, b in zip(one, mine)])
                efficiency = Spread(speedup.mid / more, speedup.low / more, speedup.high / more)
                result.append(Point(column.name, way, num_ranks, stats.over_rounds(mine), speedup, efficiency))
    return result
