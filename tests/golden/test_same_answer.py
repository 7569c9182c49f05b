"""The first promise: N ranks have the parameters of one process that sees whole batches."""

import functools

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from tests.harness import run_ranks
from tests.multi.cases import CASES, reference, train, worst_difference

# Under horovodrun --mpi the choice falls on mpi4py, where it is installed; here Horovod itself is to answer.
ASKED = {"horovodrun-mpi": {"HVD_TRAINER_ENGINE": "horovod"}}


@functools.cache
def expected(case):
    return reference(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_rank_equals_plain_torch(case):
    params, _ = train(SingleCommunicator(), case)
    assert worst_difference(params, expected(case)) <= case.tolerance


COLUMNS = (
    [("mpirun", n) for n in (1, 2, 3, 4)]
    + [(f"horovodrun-{kind}", n) for kind in ("gloo", "mpi") for n in (2, 3)]
    + [("torchrun", n) for n in (2, 3)]
)
QUICK = [("mpirun", 3), ("horovodrun-gloo", 2), ("horovodrun-mpi", 2)]


@pytest.mark.parametrize(
    ("launcher", "num_ranks"), [column if column in QUICK else pytest.param(*column, marks=pytest.mark.slow) for column in COLUMNS]
)
def test_many_ranks_equal_plain_torch(launcher, num_ranks, tmp_path):
    file = tmp_path / "params.pt"
    run_ranks(launcher, num_ranks, ["-m", "tests.multi.same_answer", file], 150, ASKED.get(launcher)).ok()
    found = torch.load(file)
    differences = {case.name: worst_difference(found[case.name][0], expected(case)) for case in CASES}
    assert not {case.name: differences[case.name] for case in CASES if not differences[case.name] <= case.tolerance}


@pytest.mark.parametrize(
    ("launcher", "engine"),
    [
        pytest.param("mpirun", "mpi, backend mpi", marks=pytest.mark.slow),
        pytest.param("horovodrun-gloo", "horovod, backend gloo", marks=pytest.mark.slow),
        ("horovodrun-mpi", "horovod, backend mpi"),  # which auto would not choose
        pytest.param("torchrun", "torch, backend gloo", marks=pytest.mark.slow),
    ],
)
def test_the_engine_is_the_one_of_the_column(launcher, engine):
    """Guards the table above."""
    program = ["-c", "import hvd_trainer as ht; ht.init().close()"]
    assert f"engine {engine}" in run_ranks(launcher, 2, program, env=ASKED.get(launcher)).ok().stdout
