"""`hvd-trainer bench step`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hvd_trainer.amounts import show_count
from hvd_trainer.bench import columns as all_columns
from hvd_trainer.bench import plot, record, rounds, summary, tables, workloads
from hvd_trainer.cli.bench_place import Place, command_line, common_options, console, say, short_paths, write
from hvd_trainer.errors import HvdTrainerError

AGAINST = "ours-mpi"


@click.command(short_help="A training step: this library, Horovod, DDP and the bound, in turns.")
@click.option("--workload", "names", multiple=True, metavar="NAME", help=f"One of {', '.join(workloads.BY_NAME)}; again for more. Default: the first four.")
@click.option("--script", type=click.Path(), help="A file with make(): your own model, loss, batches and optimizer.")
@click.option("--sweep", is_flag=True, help="The workloads of 10^5 to 10^8 parameters and of 10 and 1,000 tensors.")
@click.option("--column", "texts", multiple=True, metavar="NAME[:OPTION=VALUE,...]", help="A column; again for more. Default: all that can run here.")
@click.option("--against", default=AGAINST, show_default=True, metavar="NAME", help="The column that the others are compared with.")
@click.option("-np", "--ranks", type=click.IntRange(1), default=2, show_default=True)
@click.option("--steps", type=int, help="Timed steps of a launch. Default: the workload's own number.")
@click.option("--memory/--no-memory", default=True, show_default=True, help="One more round for PSS and RSS.")
@common_options
@click.pass_context
def step(
    context: click.Context, names: tuple[str, ...], script: str | None, sweep: bool, texts: tuple[str, ...], against: str,
    ranks: int, threads: int, num_rounds: int, steps: int | None, memory: bool, draw: bool, out: Path, dry_run: bool,
) -> None:  # fmt: skip
    """Time training steps of this library, of hvd.DistributedOptimizer, of torch DDP and without communication.

    Columns need different launchers, so every launch is started once a round, in an order that rotates; columns that
    can share a process take turns in it. The exit code is 1 where the columns'
    losses differ, or one does not run.

    \b
    Examples:
      hvd-trainer bench step
      hvd-trainer bench step --workload wide --column compute --column ours-mpi --column "ours-mpi:bucket_bytes=65536"
      hvd-trainer bench step --script mine.py -np 4 --rounds 3
    """
    try:
        chosen = tuple(workloads.choose(names, script, sweep, steps))
        place = Place.here(ranks, threads)
        columns = place.those_that_can_run([all_columns.parse(text) for text in texts] or all_columns.COLUMNS, bool(texts))
        if draw:
            plot.pyplot()
        lines = place.show_lines(columns, (*rounds.WORKER, "JOB.json"))
        if dry_run:
            return
        required = frozenset(column.name for column in columns) if texts else frozenset()
        plan = rounds.Plan(columns, chosen, ranks, threads, num_rounds, memory, required=required)
        settings = {"ranks": ranks, "threads": threads, "rounds": num_rounds, "against": against}
        head = record.head("step", command_line(), settings, lines)
        measured = rounds.measure(plan, place.start, say)
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer bench step: {error}", err=True)
        context.exit(2)
    found = {w.name: summary.rows(measured, columns, w.name, against) for w in chosen}
    costs = summary.costs(measured, against) if sweep else []
    show_steps(measured, chosen, found, against, costs)
    path = write(out, step_record(head, measured, found, costs))
    if draw:
        title = f"{show_count(ranks, 'rank')} x {show_count(threads, 'thread')}: median and range of {show_count(num_rounds, 'round')}; dashed: compute only"
        plot.steps(path.with_suffix(".png"), found, title)
        click.echo(path.with_suffix(".png"))
    context.exit(0 if not measured.failed and all(row.agrees for rows in found.values() for row in rows) else 1)


def show_steps(
    measured: rounds.Measured, chosen: tuple[workloads.Workload, ...], found: dict[str, list[summary.Row]], against: str, costs: list[summary.Cost]
) -> None:  # fmt: skip
    """The tables, and what did not work."""
    screen = console()
    for workload in chosen:
        if found[workload.name]:
            screen.print(tables.steps(workload, measured.sizes[workload.name]["num_params"], found[workload.name], against))
    if costs:
        screen.print(tables.costs(against, costs))
    screen.print("median of the rounds (smallest..largest); ratios round by round; a round: the slowest rank's own median", style="dim")
    for name, rows in found.items():
        for row in rows:
            if not row.agrees:
                click.echo(f"{name}: the losses of {row.column} differ from those of {against} by {row.loss_differs:.1e}", err=True)
    for name, text in measured.failed.items():
        click.echo(f"{name} was left out: it {text.splitlines()[0]}", err=True)


def step_record(head: dict, measured: rounds.Measured, found: dict[str, list[summary.Row]], costs: list[summary.Cost]) -> dict:
    """Everything, for the JSON file; samples last, so that a reader meets the result first."""
    return {
        **head,
        "result": {name: {row.column: row.as_dict() for row in rows} for name, rows in found.items()},
        "cost_over_compute": {cost.workload: {**asdict(cost), "ns_per_param": cost.ns_per_param} for cost in costs},
        "sizes": measured.sizes,
        "failed": {name: short_paths(text) for name, text in measured.failed.items()},
        "said": {name: short_paths(text) for name, text in measured.said.items()},
        "memory": measured.memory,
        "losses": measured.losses,
        "ms_by_round_and_rank": measured.times,
    }
