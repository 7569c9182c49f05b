"""What can start ranks on this machine: programs, their kinds, and a SLURM allocation."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_trainer import cores, mpi_flavour
from hvd_trainer.launcher.horovod_build import record
from hvd_trainer.mpi_flavour import MpiFlavour

NO_MPI = MpiFlavour("", "")


@dataclass(frozen=True)
class Present:
    """What `pick` and the argv modules need to know.

    Args:
        mpirun, horovodrun, srun: full paths; "" where there is none.
        mpi: the MPI that mpirun belongs to.
        mpi4py, torch: whether there is a package of that name.
        horovod_repaired: whether Horovod's binding options are those that Open MPI 5 knows.
        allocation: id of the SLURM job that we are in; "" outside.
        allocation_tasks: ranks that it was made for; 0 where it does not say.
        srun_types: what `srun --mpi=list` offers.
        root: whether we are root, whom Open MPI asks for consent.
        cores: physical cores that we may use.
        own_variables: variables of ours, of Python's path and of threads that other hosts must get too.
    """

    mpirun: str = ""
    mpi: MpiFlavour = NO_MPI
    mpi4py: bool = False
    horovodrun: str = ""
    horovod_repaired: bool = False
    torch: bool = False
    srun: str = ""
    allocation: str = ""
    allocation_tasks: int = 0
    srun_types: frozenset[str] = frozenset()
    root: bool = False
    cores: int = 1
    own_variables: tuple[str, ...] = ()

    @property
    def srun_type(self) -> str:
        """The protocol by which SLURM can start ranks of this MPI; "" where there is none."""
        wanted = {"Open MPI": ("pmix",), "MPICH": ("pmi2", "pmix"), "Intel MPI": ("pmi2",)}.get(self.mpi.name, ())
        return next((kind for kind in wanted if kind in self.srun_types), "")


def look(python: str, env: Mapping[str, str], output: Callable[..., str], ask_slurm: bool = False) -> Present:
    """Look around.

    Args:
        python: the interpreter; programs beside it are found first, so that no environment need be activated.
        env: the environment variables.
        output: runs a program and returns what it prints, "" where that fails.
        ask_slurm: what srun can start, also outside an allocation (without a cluster behind it that takes seconds).
    """
    path = os.pathsep.join([os.path.dirname(python), env.get("PATH", os.defpath)])

    def find(name: str) -> str:
        return os.path.abspath(found) if (found := shutil.which(name, path=path)) else ""

    mpirun = find("mpirun") or find("mpiexec")
    srun = find("srun")
    allocation = env.get("SLURM_JOB_ID", "")
    repairs = {repair.get("name") for repair in record.installed().get("repairs", [])}
    tasks = env.get("SLURM_NTASKS", "")
    ours = [name for name in sorted(env) if name.startswith("HVD_TRAINER_") or name == "PYTHONPATH"]
    return Present(
        mpirun=mpirun,
        mpi=mpi_flavour.parse(output(mpirun, "--version")) if mpirun else NO_MPI,
        mpi4py=has_module("mpi4py"),
        horovodrun=find("horovodrun") if has_module("horovod") else "",
        horovod_repaired="binding-options" in repairs,
        torch=has_module("torch"),
        srun=srun,
        allocation=allocation if srun else "",
        allocation_tasks=int(tasks) if tasks.isdigit() else 0,
        srun_types=frozenset(output(srun, "--mpi=list").split()) if srun and (allocation or ask_slurm) else frozenset(),
        root=hasattr(os, "geteuid") and os.geteuid() == 0,
        cores=len(cores.my_cores()),
        own_variables=tuple(ours),
    )


def has_module(name: str) -> bool:
    """Whether a top-level module could be imported, without importing it."""
    return importlib.util.find_spec(name) is not None
