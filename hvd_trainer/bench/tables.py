"""The tables of `hvd-trainer bench`, by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from hvd_trainer.bench.stats import Spread, significant
from hvd_trainer.bench.summary import Cost, Row

if TYPE_CHECKING:
    from rich.table import Table

    from hvd_trainer.bench.workloads import Workload

MIB = 2**20


def steps(workload: Workload, num_params: int, rows: Sequence[Row], against: str) -> Table:
    """One workload: a row for each column."""
    table = new(f"{workload.name}: {workload.about}, {num_params:,} parameters", "column")
    for head in ("ms a step", "compute / it", f"it / {against}", "loss differs", "peak PSS", "peak RSS"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        differs = "" if row.loss_differs is None else f"{row.loss_differs:.0e}" if row.loss_differs else "0"
        table.add_row(
            row.column,
            row.ms.text(),
            shown(row.of_limit),
            shown(row.ours_faster),
            differs if row.agrees else f"[bold red]{differs}[/]",
            mib(row.peak_pss_bytes),
            mib(row.peak_rss_bytes),
        )
    return table


def costs(column: str, found: Sequence[Cost]) -> Table:
    """What averaging costs, by the number of parameters and of tensors."""
    table = new(f"{column}: cost over compute-only", "workload")
    for head in ("parameters", "tensors", "ms a step", "ns a parameter"):
        table.add_column(head, justify="right", no_wrap=True)
    for cost in found:
        table.add_row(
            cost.workload, f"{cost.num_params:,}", f"{cost.num_tensors:,}", cost.over_ms.text(), significant(cost.ns_per_param)
        )
    return table


def new(title: str, first: str) -> Table:
    """An empty table with its title at the left."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    table.add_column(first, no_wrap=True)
    return table


def shown(spread: Optional[Spread]) -> str:
    """A ratio, or nothing."""
    return "" if spread is None else spread.text()


def mib(num_bytes: Optional[int]) -> str:
    """Bytes as MiB, or nothing.

    Example:
        >>> mib(3 * 2**20), mib(None)
        ('3 MiB', '')
    """
    return "" if num_bytes is None else f"{num_bytes / MIB:.0f} MiB"
