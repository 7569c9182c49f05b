"""`hvd-trainer bench`: what a step, an allreduce and a further rank cost here."""

from __future__ import annotations

import click

from hvd_trainer.cli.bench_allreduce import allreduce
from hvd_trainer.cli.bench_predict import predict
from hvd_trainer.cli.bench_scale import scale
from hvd_trainer.cli.bench_step import step


@click.group(short_help="Measure steps, allreduces and scaling, beside other libraries and the bound.")
def bench() -> None:
    """Measure what a step, an allreduce and a further rank cost on this machine.

    Each command prints its launch lines and a table, and writes all samples as JSON and a plot.
    """


bench.add_command(step)
bench.add_command(allreduce)
bench.add_command(scale)
bench.add_command(predict)
