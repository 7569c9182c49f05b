"""What the commands of `hvd-trainer bench` share: where they start launchers, what they say, where it is written."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from hvd_trainer import env
from hvd_trainer.bench import record, start
from hvd_trainer.bench.columns import Column
from hvd_trainer.cli import bench_lines
from hvd_trainer.errors import MissingPartError
from hvd_trainer.launcher import start as launcher_start
from hvd_trainer.launcher.present import Present, look
from hvd_trainer.launcher.start_line import StartLine


def common_options(command: Callable) -> Callable:
    """The options that all three commands have."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Print the launch lines and start nothing."),
        click.option("--out", type=click.Path(path_type=Path), default=Path("runs/bench"), show_default=True, help="Folder for JSON and PNG."),
        click.option("--plot/--no-plot", "draw", default=True, show_default=True),
        click.option("--rounds", "num_rounds", type=click.IntRange(1), default=5, show_default=True, help="Every launch once a round."),
        click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads a rank."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Place:
    """What the commands need to start launchers.

    Args:
        present: what is installed.
        ranks, threads: of every launch.
        variables: the environment of every launch, before the line's own.
        python: full path of the interpreter.
    """

    present: Present
    ranks: int
    threads: int
    variables: dict[str, str]
    python: str = sys.executable

    @staticmethod
    def here(ranks: int, threads: int) -> Place:
        """This machine."""
        variables = env.snapshot()
        present = look(sys.executable, variables, launcher_start.output)
        return Place(present, ranks, threads, bench_lines.clean(variables))

    def line(self, line: str, command: tuple[str, ...]) -> StartLine:
        """The command line of a launch."""
        return bench_lines.build(line, command, self.ranks, self.threads, self.present, self.python)

    def start(self, line: str, command: tuple[str, ...]) -> start.Ended:
        """Run a launch to its end."""
        built = self.line(line, command)
        return start.run(built.argv, {**self.variables, **built.env})

    def those_that_can_run(self, asked: Sequence[Column], by_name: bool) -> tuple[Column, ...]:
        """The columns that can run here; what is left out is said.

        Args:
            asked: all of them.
            by_name: whether the user named them, so that none may be left out.

        Raises:
            MissingPartError: a column was asked for by name and cannot run.
        """
        missing = bench_lines.available(self.present)
        for column in asked:
            if missing[column.line]:
                if by_name:
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


def write(out: Path, content: dict[str, Any]) -> Path:
    """Write the record and say where it is."""
    path = record.write(out, content)
    click.echo(path)
    return path


def console() -> Any:
    """rich's, as wide as the terminal, or wide enough for a file."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 160, highlight=False)
