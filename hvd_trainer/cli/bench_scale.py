"""`hvd-trainer bench scale`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import click

from hvd_trainer.amounts import show_count
from hvd_trainer.bench import columns as all_columns
from hvd_trainer.bench import plot, record, rounds, scaling, tables, workloads
from hvd_trainer.cli.bench_place import Place, command_line, common_options, console, say, short_paths, write
from hvd_trainer.errors import ConfigError, HvdTrainerError

DEFAULT_COLUMNS = ("compute", "ours-mpi")


@click.command(short_help="1 to N ranks: the same batch a rank (weak), and the same global batch (strong).")
@click.option("--workload", "name", default="transformer", show_default=True, metavar="NAME", help=f"One of {', '.join(workloads.BY_NAME)}.")
@click.option("--script", type=click.Path(), help="A file with make(), instead of a built-in workload.")
@click.option("--column", "texts", multiple=True, metavar="NAME[:OPTION=VALUE,...]", help=f"As for `bench step`; again for more. Default: {' and '.join(DEFAULT_COLUMNS)}.")
@click.option("-np", "--ranks", type=click.IntRange(1), help="Largest number of ranks. Default: as many as fit the cores.")
@click.option("--global-batch", type=int, help="Samples in all of the strong way. Default: what the weak way has at N ranks.")
@click.option("--steps", type=int, help="Timed steps of a launch. Default: the workload's own number.")
@common_options
@click.pass_context
def scale(
    context: click.Context, name: str, script: str | None, texts: tuple[str, ...], ranks: int | None, global_batch: int | None, steps: int | None,
    threads: int, num_rounds: int, draw: bool, out: Path, dry_run: bool,
) -> None:  # fmt: skip
    """Time the steps of 1, 2, ... N ranks on this machine.

    Weak: each rank has its batch of 32, so the ideal is the same time. Strong: the ranks divide one global batch. The
    column compute shows what the machine itself loses to memory bandwidth, whatever the communication.
    """
    try:
        place = Place.here(1, threads)
        most = ranks if ranks is not None else max(1, place.present.cores // threads)
        asked = () if script else (name,)
        base = workloads.choose(asked, script, steps=steps)[0]
        chosen = tuple(scaling.workloads(base, most, global_batch))
        columns = place.those_that_can_run([all_columns.parse(text) for text in texts or DEFAULT_COLUMNS], True)
        if any(column.line.startswith("horovodrun") for column in columns) and most > place.present.cores:
            raise ConfigError(f"-np {most} through horovodrun", f"at most {place.present.cores} ranks, one a core")
        if draw:
            plot.pyplot()
        lines = replace(place, ranks=most).show_lines(columns, (*rounds.WORKER, "JOB.json"))
        if dry_run:
            return
        counts = list(range(1, most + 1))
        plan = rounds.Plan(columns, chosen, most, threads, num_rounds, required=frozenset(column.name for column in columns))
        settings = {"workload": base.name, "ranks": counts, "threads": threads, "rounds": num_rounds, "global_batch": chosen[1].global_batch}
        head = record.head("scale", command_line(), settings, lines)
        found = scaling.measure(plan, counts, lambda count: replace(place, ranks=count).start, say)
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer bench scale: {error}", err=True)
        context.exit(2)
    points = scaling.points(found, columns)
    screen = console()
    screen.print(tables.scaling(base.name, points))
    content = {
        **head,
        "result": [asdict(point) for point in points],
        "said": {str(count): {column: short_paths(text) for column, text in measured.said.items()} for count, measured in found.items()},
        "ms_by_ranks_round_and_rank": {str(count): measured.times for count, measured in found.items()},
    }  # fmt: skip
    path = write(out, content)
    if draw:
        plot.scaling(path.with_suffix(".png"), points, f"{base.name}, 1 to {show_count(most, 'rank')} x {show_count(threads, 'thread')}")
        click.echo(path.with_suffix(".png"))
