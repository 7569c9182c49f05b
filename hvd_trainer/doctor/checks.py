"""The checks, in the order in which they are printed."""

from __future__ import annotations

from hvd_trainer.doctor import cores, horovod, mpi, python, torch
from hvd_trainer.doctor.finding import Finding


def run_all() -> list[Finding]:
    """Run every check; a few seconds, most of them for importing torch."""
    return [check() for check in (python.check, torch.check, mpi.check, horovod.check, cores.check)]
