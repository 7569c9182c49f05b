"""`hvd-trainer report`: the page of a search, made anew from its numbers."""

from __future__ import annotations

from pathlib import Path

import click

from hvd_trainer.errors import HvdTrainerError


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
        from hvd_trainer.report.write import write

        for path in write(folder):
            click.echo(path)
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer report: {error}", err=True)
        context.exit(2)
