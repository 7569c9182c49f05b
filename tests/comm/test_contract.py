"""The contract of a Communicator, for every engine, backend and number of ranks; one launch for each."""

from __future__ import annotations

import pytest

from hvd_trainer.comm.parts import module_exists
from tests.comm import contract
from tests.harness import missing, run_ranks

CASES = [
    ("alone", "single", "none", 1),
    ("alone", "mpi", "mpi", 1),
    ("alone", "horovod", "mpi", 1),
    ("alone", "horovod", "gloo", 1),
    ("alone", "torch", "gloo", 1),
    *[("mpirun", "mpi", "mpi", np) for np in (1, 2, 3, 4)],
    *[("mpirun", "horovod", "mpi", np) for np in (2, 3, 4)],
    ("horovodrun-mpi", "horovod", "mpi", 2),
    ("horovodrun-mpi", "mpi", "mpi", 2),
    *[("horovodrun-gloo", "horovod", "gloo", np) for np in (1, 2, 3, 4)],
    *[("torchrun", "torch", "gloo", np) for np in (1, 2, 3, 4)],
    ("mpirun", "torch", "gloo", 2),
    ("horovodrun-gloo", "torch", "gloo", 2),
]
# One launch takes seconds. Three ranks show everything that two do, and each engine is here once.
QUICK = [
    ("alone", "single", "none", 1),
    ("mpirun", "mpi", "mpi", 3),
    ("mpirun", "horovod", "mpi", 2),
    ("horovodrun-gloo", "horovod", "gloo", 3),
    ("torchrun", "torch", "gloo", 2),
]


@pytest.mark.parametrize(
    "launcher, engine, backend, np",
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_contract(launcher: str, engine: str, backend: str, np: int) -> None:
    if engine == "horovod" and not module_exists("horovod"):
        missing("horovod", "horovod is not installed")
    if engine == "mpi" and not module_exists("mpi4py"):
        missing("mpi", "mpi4py is not installed")
    result = run_ranks(
        launcher, np, ["-m", "tests.comm.contract", "--engine", engine, "--backend", backend], timeout_s=90
    ).ok()
    assert f"{len(contract.CHECKS)} checks passed, {engine} {backend} {np}" in result.stdout, str(result)
