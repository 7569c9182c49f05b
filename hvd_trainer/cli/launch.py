"""`hvd-trainer launch`: start a script on N ranks with the launcher that is there."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from hvd_trainer import env
from hvd_trainer.errors import ConfigError, HvdTrainerError
from hvd_trainer.launcher import argv_horovodrun, argv_mpirun, argv_srun, argv_torchrun, label, start
from hvd_trainer.launcher.pick import pick
from hvd_trainer.launcher.present import Present, look
from hvd_trainer.launcher.spec import LAUNCHERS, Host, LaunchSpec, check_script, parse_hostfile, parse_hosts

BUILD = {
    "mpirun": argv_mpirun.build,
    "horovodrun": argv_horovodrun.build,
    "torchrun": argv_torchrun.build,
    "srun": argv_srun.build,
}


@click.command(
    short_help="Start a script on N ranks with the launcher that is there.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("-np", "--ranks", type=int, help="Ranks in all. Default: the SLURM allocation's tasks, or all slots.")
@click.option("--hosts", "-H", default="", metavar="h1:2,h2:2", help="Hosts and how many ranks each may take.")
@click.option("--hostfile", type=click.Path(exists=True, dir_okay=False), help='Lines as "h1 slots=2".')
@click.option("--with", "asked", type=click.Choice(["auto", *LAUNCHERS]), default="auto", show_default=True)
@click.option("--threads", type=int, help="CPU threads a rank. Default: the cores are divided.")
@click.option("--dry-run", is_flag=True, help="Print the command and do not run it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]...")
@click.pass_context
def launch(
    context: click.Context,
    ranks: int | None,
    hosts: str,
    hostfile: str | None,
    asked: str,
    threads: int | None,
    dry_run: bool,
    command: tuple[str, ...],
) -> None:
    """Start SCRIPT on several ranks, print the command that does it, and put the rank in front of each line.

    Options stand before SCRIPT; what follows it goes to the script. Ctrl-C and SIGTERM end the whole job, and the exit
    code is the job's.

    \b
    Examples:
      hvd-trainer launch -np 2 train.py --set lr=0.2
      hvd-trainer launch -np 8 --hosts node1:4,node2:4 train.py
      hvd-trainer launch -np 4 --with torchrun --dry-run train.py
    """
    try:
        where = read_hosts(hosts, hostfile)
        variables = env.snapshot()
        present = look(sys.executable, variables, start.output, ask_slurm=asked == "srun")
        spec = LaunchSpec(number_of_ranks(ranks, where, present), command, sys.executable, where, threads)
        check_script(command)
        chosen = pick(spec, asked, present)
        line = BUILD[chosen.launcher](spec, present)
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer launch: {error}", err=True)
        context.exit(2)
    click.echo(f"# {chosen.launcher}: {chosen.reason}", err=True)
    for note in line.notes:
        click.echo(f"# {note}", err=True)
    click.echo(str(line), err=not dry_run)
    if not dry_run:
        relabel = partial(label.relabel, launcher=chosen.launcher)
        context.exit(start.run(line, variables, relabel, sys.stdout, sys.stderr))


def read_hosts(hosts: str, hostfile: str | None) -> tuple[Host, ...]:
    """Hosts from either option."""
    if hosts and hostfile:
        raise ConfigError("both --hosts and --hostfile", "one of them", "put the hosts into the file")
    if hostfile:
        return parse_hostfile(Path(hostfile).read_text(), hostfile)
    return parse_hosts(hosts) if hosts else ()


def number_of_ranks(given: int | None, hosts: tuple[Host, ...], present: Present) -> int:
    """As given, else as many as the hosts have slots, else as the allocation was made for."""
    if given is not None:
        return given
    ranks = sum(host.slots for host in hosts) or (present.allocation_tasks if present.allocation else 0)
    if ranks == 0:
        raise ConfigError("the number of ranks is not given", "-np N", "for example: -np 2")
    return ranks
