"""The command line of each column of a measurement, from what is installed (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from hvd_trainer.bench.columns import LINES
from hvd_trainer.launcher import argv_horovodrun, argv_mpirun, argv_torchrun
from hvd_trainer.launcher.present import Present
from hvd_trainer.launcher.spec import LaunchSpec
from hvd_trainer.launcher.start_line import StartLine

# The settings that suit Horovod best on CPUs: ranks bound to cores, a wait that yields, ten times as many cycles.
BEST_FOR_HOROVOD = {"OMPI_MCA_mpi_yield_when_idle": "1", "HOROVOD_CYCLE_TIME": "0.1"}
# What would change a column behind its back: settings of the libraries, threads, and the traces of another launcher.
DROPPED = (
    "HOROVOD_", "OMPI_MCA_mpi_yield_when_idle", "OMPI_MCA_hwloc", "OMP_", "MKL_", "KMP_", "GOMP_",
    "OMPI_COMM_", "PMIX_", "PMI_", "MASTER_", "TORCHELASTIC_", "LOCAL_", "RANK", "WORLD_SIZE", "GROUP_",
)  # fmt: skip


def build(line: str, command: tuple[str, ...], ranks: int, threads: int, present: Present, python: str) -> StartLine:
    """The command line.

    Args:
        line: one of `bench.columns.LINES`.
        command: what each rank runs, after the interpreter.
        ranks, threads: of the launch.
        present: what is installed.
        python: full path of the interpreter.
    """
    spec = LaunchSpec(ranks, command, python, threads=threads)
    if line in ("mpirun", "mpirun-best"):
        start = argv_mpirun.build(spec, present)
    elif line == "torchrun":
        start = argv_torchrun.build(spec, present)
    else:
        start = argv_horovodrun.build(spec, present)
        start.argv.insert(1, line.removeprefix("horovodrun").replace("-", "--"))
        if line == "horovodrun-gloo":
            start.argv[:] = [word for word in start.argv if not word.startswith(("--binding-args", "--mpi-args"))]
    if line == "mpirun-best":
        start.env.update(BEST_FOR_HOROVOD)
    return start


def available(present: Present) -> dict[str, str]:
    """For each line, what is missing for it; "" where nothing is."""
    mpi = "" if present.mpirun and present.mpi4py else "mpirun with mpi4py"
    horovod = "" if present.horovodrun else "Horovod"
    missing = {
        "mpirun": mpi,
        "mpirun-best": horovod or mpi,
        "horovodrun-mpi": horovod or mpi,
        "horovodrun-gloo": horovod,
        "torchrun": "" if present.torch else "torch",
    }
    return {line: missing[line] for line in LINES}


def clean(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would change a column behind its back.

    Example:
        >>> clean({"OMP_NUM_THREADS": "8", "HOROVOD_CYCLE_TIME": "5", "HOME": "/root"})
        {'HOME': '/root'}
    """
    return {name: value for name, value in env.items() if not name.startswith(DROPPED)}
