"""`hvd-trainer`: the group that holds the commands."""

from __future__ import annotations

import click

from hvd_trainer.cli.bench import bench
from hvd_trainer.cli.doctor import doctor
from hvd_trainer.cli.install_horovod import install_horovod
from hvd_trainer.cli.launch import launch
from hvd_trainer.cli.report import report
from hvd_trainer.cli.tune import tune


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Data-parallel training for PyTorch over Horovod or MPI."""


main.add_command(bench)
main.add_command(doctor)
main.add_command(install_horovod)
main.add_command(launch)
main.add_command(report)
main.add_command(tune)
