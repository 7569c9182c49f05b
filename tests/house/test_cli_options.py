"""The list of all options. A new one is a promise to keep: add it here, and say in the commit why it is needed."""

import click

from hvd_trainer.cli.main import main
from hvd_trainer.launcher.install_horovod import parser

OPTIONS = {
    "bench allreduce": {"--column", "--dry-run", "--max-bytes", "--out", "--plot", "--ranks", "--rounds", "--threads"},
    "bench predict": {
        "--bucket-bytes", "--budget", "--engine", "--from-json", "--global-batch", "--hosts", "--link", "--measure-ranks",
        "--micro-batch", "--out", "--ranks", "--ranks-per-node", "--script", "--threads", "--workload",
    },
    "bench scale": {
        "--column", "--dry-run", "--global-batch", "--out", "--plot", "--ranks", "--rounds", "--script", "--steps", "--threads",
        "--workload",
    },
    "bench step": {
        "--against", "--column", "--dry-run", "--memory", "--out", "--plot", "--ranks", "--rounds", "--script", "--steps", "--sweep",
        "--threads", "--workload",
    },
    "doctor": {"--json"},
    "install-horovod": {
        "--cache", "--dry-run", "--help", "--jobs", "--mpicxx", "--no-gloo", "--no-mpi", "--no-repairs", "--rebuild",
    },
    "launch": {"--dry-run", "--hostfile", "--hosts", "--ranks", "--threads", "--with"},
    "report": set(),
    "tune": {
        "--backends", "--budget", "--dry-run", "--jobs", "--largest-batch", "--micro-batch", "--noise-scale", "--optimizers", "--out", "--phases",
        "--ranks", "--seed", "--storage", "--target", "--threads", "--trials", "--with",
    },
}  # fmt: skip


def leaves(group, prefix=""):
    """(name, command) of everything that does something: "launch", "bench step"."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def test_the_options_are_the_ones_that_were_agreed():
    found = {
        name: {word for p in command.params if isinstance(p, click.Option) for word in p.opts if word.startswith("--")}
        for name, command in leaves(main)
    }
    # This command has a parser of its own, because it must run without click.
    found["install-horovod"] = {
        word for action in parser()._actions for word in action.option_strings if word.startswith("--")
    }
    assert found == OPTIONS
