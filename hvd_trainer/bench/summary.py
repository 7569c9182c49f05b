"""From what was measured to the numbers that are shown: medians, ratios, agreement, memory (pure)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Optional

from hvd_trainer.bench import stats
from hvd_trainer.bench.columns import COMPUTE, Column
from hvd_trainer.bench.rounds import Measured
from hvd_trainer.bench.stats import Spread

AGREES_WITHIN = 1e-3  # sums in another order, hundreds of steps later; columns that do not average are 0.03 and more apart


@dataclass(frozen=True)
class Row:
    """One column on one workload.

    Args:
        column: its name.
        ms: milliseconds a step.
        of_limit: compute-only time / this one's; None without compute-only.
        ours_faster: this one's time / the time of the column compared against; None for that one itself.
        loss_differs: from the column compared against, relative; None where this one does not average.
        peak_pss_bytes, peak_rss_bytes: of the largest rank; None where memory was not measured.
    """

    column: str
    ms: Spread
    of_limit: Optional[Spread]
    ours_faster: Optional[Spread]
    loss_differs: Optional[float]
    peak_pss_bytes: Optional[int]
    peak_rss_bytes: Optional[int]

    @property
    def agrees(self) -> bool:
        """Whether it trained as the others did."""
        return self.loss_differs is None or self.loss_differs <= AGREES_WITHIN

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return asdict(self)


def rows(measured: Measured, columns: tuple[Column, ...], workload: str, against: str) -> list[Row]:
    """The rows of one workload, in the order of the columns; those that failed are left out.

    Args:
        measured: from `rounds.measure`.
        columns: what was asked for.
        workload: its name.
        against: the column that the others are compared with, where it is there.
    """
    times = {name: [stats.step_time(ranks) for ranks in found] for name, found in measured.times.get(workload, {}).items()}
    losses, memory = measured.losses.get(workload, {}), measured.memory.get(workload, {})
    found = []
    for column in columns:
        mine = times.get(column.name)
        if mine is None:
            continue
        differs = None
        if column.syncs and against in losses:
            differs = stats.disagreement(losses[column.name], losses[against])
        ranks = memory.get(column.name)
        found.append(
            Row(
                column.name,
                stats.over_rounds(mine),
                stats.ratios(times[COMPUTE], mine) if COMPUTE in times else None,
                stats.ratios(mine, times[against]) if against in times and against != column.name else None,
                differs,
                max(rank["peak_pss_bytes"] for rank in ranks) if ranks else None,
                max(rank["peak_rss_bytes"] for rank in ranks) if ranks else None,
            )
        )
    return found


@dataclass(frozen=True)
class Cost:
    """What averaging costs over compute-only, on one workload.

    Args:
        workload: its name.
        num_params, num_tensors: of the model.
        over_ms: milliseconds a step more than compute-only.
    """

    workload: str
    num_params: int
    num_tensors: int
    over_ms: Spread

    @property
    def ns_per_param(self) -> float:
        """Nanoseconds for each parameter, of the median.

        Example:
            >>> Cost("a", 1000, 2, Spread(0.5, 0.4, 0.6)).ns_per_param
            500.0
        """
        return self.over_ms.mid * 1e6 / self.num_params


def costs(measured: Measured, column: str) -> list[Cost]:
    """The cost of one column on every workload, in the order of their parameters; [] without compute-only."""
    found = []
    for workload, columns in measured.times.items():
        if COMPUTE in columns and column in columns:
            mine, bound = ([stats.step_time(ranks) for ranks in columns[name]] for name in (column, COMPUTE))
            over = stats.over_rounds([a - b for a, b in zip(mine, bound)])
            found.append(Cost(workload, **measured.sizes[workload], over_ms=over))
    return sorted(found, key=lambda cost: (cost.num_params, cost.num_tensors))
