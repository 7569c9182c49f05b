"""`hvd-trainer bench`: what a step, an allreduce and a further rank cost here."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from hvd_trainer import env
from hvd_trainer.bench import columns as all_columns
from hvd_trainer.bench import plot, record, rounds, start, summary, tables, workloads
from hvd_trainer.bench.columns import Column
from hvd_trainer.cli import bench_lines
from hvd_trainer.errors import ConfigError, HvdTrainerError, MissingPartError
from hvd_trainer.launcher import start as launcher_start
from hvd_trainer.launcher.present import Present, look

AGAINST = "ours-mpi"


@click.group(short_help="Measure steps, allreduces and scaling, beside other libraries and the bound.")
def bench() -> None:
    """Measure what a step, an allreduce and a further rank cost on this machine.

    Each command prints its launch lines and a table, and writes all samples as JSON and a plot.
    """


@dataclass(frozen=True)
class Place:
    """What the commands need to start launchers.

    Args:
        present: what is installed.
        ranks, threads: of every launch.
        variables: the environment of every launch, before the line's own.
    """

    present: Present
    ranks: int
    threads: int
    variables: dict[str, str]

    @staticmethod
    def here(ranks: int, threads: int) -> Place:
        """This machine.

        Raises:
            ConfigError: an impossible number.
        """
        for name, value in (("--ranks", ranks), ("--threads", threads)):
            if value < 1:
                raise ConfigError(f"{name} {value}", "1 or more", f"{name} 2")
        variables = env.snapshot()
        present = look(sys.executable, variables, launcher_start.output)
        return Place(present, ranks, threads, bench_lines.clean(variables))

    def line(self, line: str, command: tuple[str, ...]) -> launcher_start.StartLine:
        """The command line of a launch."""
        return bench_lines.build(line, command, self.ranks, self.threads, self.present, sys.executable)

    def start(self, line: str, command: tuple[str, ...]) -> start.Ended:
        """Run a launch to its end."""
        built = self.line(line, command)
        return start.run(built.argv, {**self.variables, **built.env})

    def choose_columns(self, texts: tuple[str, ...]) -> tuple[Column, ...]:
        """The columns that were asked for, or all that can run here; what is missing is said.

        Raises:
            MissingPartError: a column was asked for by name and cannot run.
        """
        asked = [all_columns.parse(text) for text in texts] or list(all_columns.COLUMNS)
        missing = bench_lines.available(self.present)
        for column in asked:
            if missing[column.line]:
                if texts:
                    raise MissingPartError(f"--column {column.name} needs {missing[column.line]}", fix="hvd-trainer doctor")
                say(f"# {column.name} is left out: {missing[column.line]} is not here")
        return tuple(column for column in asked if not missing[column.line])

    def show_lines(self, columns: tuple[Column, ...], command: tuple[str, ...]) -> dict[str, str]:
        """Print the command line of each column and return them."""
        lines = {column.name: short_paths(str(self.line(column.line, command))) for column in columns}
        for names in {text: [n for n, t in lines.items() if t == text] for text in lines.values()}.items():
            click.echo(f"# {', '.join(names[1])}:\n{names[0]}")
        return lines


def say(text: str) -> None:
    """Progress goes to stderr, so that stdout has the result alone."""
    click.echo(text, err=True)


def short_paths(text: str) -> str:
    """Without the folders of this environment and of the place where we stand: for records that others read."""
    return text.replace(f"{Path(sys.executable).parent}/", "").replace(f"{Path.cwd()}/", "")


def command_line() -> str:
    """As it was typed."""
    return shlex.join(["hvd-trainer", *sys.argv[1:]])


@bench.command(short_help="A training step: this library, Horovod, DDP and the bound, in turns.")
@click.option("--workload", "names", multiple=True, metavar="NAME", help=f"One of {', '.join(workloads.BY_NAME)}; again for more. Default: the first four.")
@click.option("--script", type=click.Path(), help="A file with make(): your own model, loss, batches and optimizer.")
@click.option("--sweep", is_flag=True, help="The workloads of 10^5 to 10^8 parameters and of 10 and 1,000 tensors.")
@click.option("--column", "texts", multiple=True, metavar="NAME[:OPTION=VALUE,...]", help="A column; again for more. Default: all that can run here.")
@click.option("--against", default=AGAINST, show_default=True, metavar="NAME", help="The column that the others are compared with.")
@click.option("-np", "--ranks", type=int, default=2, show_default=True)
@click.option("--threads", type=int, default=1, show_default=True, help="CPU threads a rank.")
@click.option("--rounds", "num_rounds", type=click.IntRange(1), default=5, show_default=True, help="Every launch once a round.")
@click.option("--steps", type=int, help="Timed steps of a launch. Default: the workload's own number.")
@click.option("--memory/--no-memory", default=True, show_default=True, help="One more round for PSS and RSS.")
@click.option("--plot/--no-plot", "draw", default=True, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/bench"), show_default=True, help="Folder for JSON and PNG.")
@click.option("--dry-run", is_flag=True, help="Print the launch lines and start nothing.")
@click.pass_context
def step(
    context: click.Context, names: tuple[str, ...], script: str | None, sweep: bool, texts: tuple[str, ...], against: str,
    ranks: int, threads: int, num_rounds: int, steps: int | None, memory: bool, draw: bool, out: Path, dry_run: bool,
) -> None:  # fmt: skip
    """Time training steps of this library, of hvd.DistributedOptimizer, of torch DDP and without communication.

    Columns need different launchers, so every launch is started once a round, in an order that rotates; columns that
    can share a process take turns in it. The exit code is 1 where the columns' losses differ.

    \b
    Examples:
      hvd-trainer bench step
      hvd-trainer bench step --workload wide --column compute --column ours-mpi --column "ours-mpi:bucket_bytes=65536"
      hvd-trainer bench step --script mine.py -np 4 --rounds 3
    """
    try:
        chosen = tuple(workloads.choose(names, script, sweep, steps))
        place = Place.here(ranks, threads)
        columns = place.choose_columns(texts)
        if draw:
            plot.pyplot()
        lines = place.show_lines(columns, (*rounds.WORKER, "JOB.json"))
        if dry_run:
            return
        required = frozenset(column.name for column in columns) if texts else frozenset()
        plan = rounds.Plan(columns, chosen, ranks, threads, num_rounds, memory, required)
        settings = {"ranks": ranks, "threads": threads, "rounds": num_rounds, "against": against}
        head = record.head("step", command_line(), settings, lines)
        measured = rounds.measure(plan, place.start, say)
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer bench step: {error}", err=True)
        context.exit(2)
    found = {w.name: summary.rows(measured, columns, w.name, against) for w in chosen}
    costs = summary.costs(measured, against) if sweep else []
    show_steps(measured, chosen, found, against, costs)
    path = record.write(out, step_record(head, measured, found, costs))
    click.echo(path)
    if draw:
        title = f"{ranks} ranks x {threads} thread{'s' if threads > 1 else ''}; bars: median of {num_rounds} rounds, with their range; dashed: compute only"
        plot.steps(path.with_suffix(".png"), found, title)
        click.echo(path.with_suffix(".png"))
    context.exit(0 if all(row.agrees for rows in found.values() for row in rows) else 1)


def show_steps(
    measured: rounds.Measured, chosen: tuple[workloads.Workload, ...], found: dict[str, list[summary.Row]], against: str, costs: list[summary.Cost]
) -> None:  # fmt: skip
    """The tables, and what did not work."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 150, highlight=False)
    for workload in chosen:
        if found[workload.name]:
            console.print(tables.steps(workload, measured.sizes[workload.name]["num_params"], found[workload.name], against))
    if costs:
        console.print(tables.costs(against, costs))
    console.print("median of the rounds (smallest..largest); ratios round by round; a round: the slowest rank's own median", style="dim")
    for name, rows in found.items():
        for row in rows:
            if not row.agrees:
                click.echo(f"{name}: the losses of {row.column} differ from those of {against} by {row.loss_differs:.1e}", err=True)
    for name, text in measured.failed.items():
        click.echo(f"{name} was left out: it {text.splitlines()[0]}", err=True)


def step_record(head: dict, measured: rounds.Measured, found: dict[str, list[summary.Row]], costs: list[summary.Cost]) -> dict:
    """Everything, for the JSON file; samples last, so that a reader meets the result first."""
    from dataclasses import asdict

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
