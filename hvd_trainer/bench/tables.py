"""The tables of `hvd-trainer bench`, by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from hvd_trainer.bench import stats
from hvd_trainer.bench.columns import Column
from hvd_trainer.bench.rounds import Measured
from hvd_trainer.bench.scaling import Point
from hvd_trainer.bench.stats import Spread, significant
from hvd_trainer.bench.summary import Cost, Row
from hvd_trainer.bench.transfers import COPY, RAW, gb_per_s, size_text
from hvd_trainer.bench.workloads import Workload

if TYPE_CHECKING:
    from rich.table import Table

MIB = 2**20


def steps(workload: Workload, num_params: int, rows: Sequence[Row], against: str) -> Table:
    """One workload: a row for each column; of what nobody has (the memory with --no-memory, ratios of one column) there is no column."""
    table = new(f"{workload.name}: {workload.about}, {num_params:,} parameters", "column")
    cells = {
        "ms a step": [row.ms.text() for row in rows],
        "compute / it": [shown(row.of_limit) for row in rows],
        f"it / {against}": [shown(row.ours_faster) for row in rows],
        "loss differs": [differs(row) for row in rows],
        "peak PSS": [mib(row.peak_pss_bytes) for row in rows],
        "peak RSS": [mib(row.peak_rss_bytes) for row in rows],
    }
    cells = {head: column for head, column in cells.items() if any(column)}
    for head in cells:
        table.add_column(head, justify="right", no_wrap=True)
    for row, *texts in zip(rows, *cells.values()):
        table.add_row(row.column, *texts)
    return table


def differs(row: Row) -> str:
    """By how much its losses do, in red where that is too much; nothing where it does not average."""
    text = "" if row.loss_differs is None else f"{row.loss_differs:.0e}" if row.loss_differs else "0"
    return text if row.agrees else f"[bold red]{text}[/]"


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


def transfers(measured: Measured, columns: Sequence[Column], sizes: Sequence[int]) -> list[Table]:
    """Microseconds with their range; then bandwidth, and the ratio to a bare MPI_Allreduce."""
    present = [column.name for column in columns if column.name in measured.times[size_text(sizes[0])]]
    time_table = new("allreduce of float32: microseconds", "bytes")
    rate_table = new("GB/s of the tensor's bytes; in parentheses: time / that of raw-mpi", "bytes")
    for name in present:
        time_table.add_column(name, justify="right", no_wrap=True)
        rate_table.add_column(name, justify="right", no_wrap=True)
    for size in sizes:
        times = {name: [stats.step_time(r) for r in measured.times[size_text(size)][name]] for name in present}
        micros = [stats.over_rounds([1e3 * ms for ms in times[name]]).text() for name in present]
        time_table.add_row(size_text(size), *micros)
        cells = []
        for name in present:
            rate = significant(gb_per_s(size, stats.over_rounds(times[name]).mid))
            beside = name not in (RAW, COPY) and RAW in times
            cells.append(f"{rate} ({significant(stats.ratios(times[name], times[RAW]).mid)})" if beside else rate)
        rate_table.add_row(size_text(size), *cells)
    return [time_table, rate_table]


def scaling(name: str, points: Sequence[Point]) -> Table:
    """Weak and strong, a row for each number of ranks."""
    table = new(f"{name}: weak: the same batch a rank; strong: the same global batch", "column")
    for head in ("way", "ranks", "ms a step", "speed-up", "efficiency"):
        table.add_column(head, justify="right", no_wrap=True)
    for point in points:
        numbers = (point.ms.text(), point.speedup.text(), point.efficiency.text())
        table.add_row(point.column, point.way, str(point.num_ranks), *numbers)
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
