"""`hvd-trainer bench allreduce`."""

from __future__ import annotations

from pathlib import Path

import click

from hvd_trainer.amounts import show_count
from hvd_trainer.bench import plot, record, rounds, stats, tables, transfers
from hvd_trainer.cli.bench_place import Place, command_line, common_options, console, say, short_paths, write
from hvd_trainer.errors import HvdTrainerError


@click.command(short_help="Latency and bandwidth of every engine, beside raw MPI and a copy in memory.")
@click.option("--max-bytes", type=int, default=transfers.LARGEST_BYTES, show_default=True, help="Largest tensor; the smallest has 1 KB.")
@click.option("--column", "names", multiple=True, metavar="NAME", help=f"One of {', '.join(transfers.BY_NAME)}; again for more. Default: all that can run here.")
@click.option("-np", "--ranks", type=click.IntRange(1), default=2, show_default=True)
@common_options
@click.pass_context
def allreduce(
    context: click.Context, max_bytes: int, names: tuple[str, ...], ranks: int, threads: int, num_rounds: int, draw: bool, out: Path, dry_run: bool
) -> None:  # fmt: skip
    """Time sums over the ranks of float32 tensors of 1 KB, 4 KB, ... 256 MB, through every engine that is here.

    Beside them: mpi4py's Allreduce without anything around it, and a copy of the tensor, which shows what the memory
    gives. A call's time is the slowest rank's median; the exit code is 1 where a sum came out wrong,
    or a column does not run.
    """
    try:
        sizes = transfers.sizes(max_bytes)
        place = Place.here(ranks, threads)
        columns = place.those_that_can_run(transfers.choose(names), bool(names))
        if draw:
            plot.pyplot()
        lines = place.show_lines(columns, (*transfers.WORKER, "JOB.json"))
        if dry_run:
            return
        required = frozenset(names)
        chosen = tuple(transfers.workload(size) for size in sizes)
        plan = rounds.Plan(columns, chosen, ranks, threads, num_rounds, worker=transfers.WORKER, required=required)
        settings = {"ranks": ranks, "threads": threads, "rounds": num_rounds, "max_bytes": max_bytes}
        head = record.head("allreduce", command_line(), settings, lines)
        measured = rounds.measure(plan, place.start, say)
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer bench allreduce: {error}", err=True)
        context.exit(2)
    screen = console()
    for table in tables.transfers(measured, columns, sizes):
        screen.print(table)
    screen.print("median of the rounds (smallest..largest); a round: the slowest rank's own median", style="dim")
    times = {
        column.name: {size: stats.over_rounds(found) for size in sizes if (found := stats.column_times(measured.times, transfers.size_text(size), column.name))}
        for column in columns
    }  # fmt: skip
    content = {
        **head,
        "result": {name: {str(size): {"ms": vars(ms), "gb_per_s": transfers.gb_per_s(size, ms.mid)} for size, ms in found.items()} for name, found in times.items()},
        "failed": {name: short_paths(text) for name, text in measured.failed.items()},
        "ms_by_round_and_rank": measured.times,
    }  # fmt: skip
    path = write(out, content)
    if draw:
        plot.transfers(path.with_suffix(".png"), {name: {size: ms.mid for size, ms in found.items()} for name, found in times.items() if found}, f"allreduce over {show_count(ranks, 'rank')}")
        click.echo(path.with_suffix(".png"))
    wrong = transfers.wrong_sums(measured.losses, columns, ranks)
    for text in wrong:
        click.echo(text, err=True)
    context.exit(1 if wrong or measured.failed else 0)
