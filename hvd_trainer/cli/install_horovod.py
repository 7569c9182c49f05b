"""`hvd-trainer install-horovod`: hands its words over to the standard-library module as they are.

The module must run where click is not installed, so it has its own parser; a second list of the options here would
only drift apart from it.
"""

from __future__ import annotations

import click

from hvd_trainer.launcher import install_horovod as command


@click.command(
    "install-horovod",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
    short_help="Build Horovod against the installed torch and install it.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def install_horovod(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Build Horovod against the installed torch and install it."""
    context.exit(command.main(list(arguments)))
