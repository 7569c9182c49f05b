"""`hvd-trainer report`: the page of a search, made anew from its numbers."""

from __future__ import annotations

from pathlib import Path

import click

from hvd_trainer.errors import HvdTrainerError, MissingPartError


@click.command(short_help="Make the page of a `tune` search anew from its report.json.")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs/tune"))
@click.pass_context
def report(context: click.Context, folder: Path) -> None:
    """Write report.html (and its part of report.md) in FOLDER from the report.json there. Needs no torch, MPI or Horovod.

    \b
    Example:
      hvd-trainer report runs/tune
    """
    try:
        for path in _write(folder):
            click.echo(path)
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer report: {error}", err=True)
        context.exit(2)


def write_page(folder: Path) -> list[Path]:
    """The page at the end of a search: what is not installed for it is said, and does not turn the search into an error.

    Args:
        folder: with its report.json.

    Returns:
        What was written.
    """
    try:
        return _write(folder)
    except MissingPartError as error:
        click.echo(f"no report.html: {error}\n  then:    hvd-trainer report {folder}", err=True)
        return []


def _write(folder: Path) -> list[Path]:
    try:
        from hvd_trainer.report.write import write
    except ModuleNotFoundError as error:
        raise MissingPartError(f"the report needs {error.name}", fix="pip install numpy matplotlib jinja2") from error
    return write(folder)
