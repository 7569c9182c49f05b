"""The first promise: N ranks have the parameters of one process that sees whole batches."""

import functools

import pytest

from hvd_trainer.comm.single import SingleCommunicator
from tests.golden.conftest import each_column, errors, read
from tests.multi.cases import CASES, reference, train, worst_difference

ENGINES = {
    "mpirun": "mpi, backend mpi",
    "horovodrun-gloo": "horovod, backend gloo",
    "horovodrun-mpi": "horovod, backend mpi (started by horovodrun over MPI",  # an engine which auto would not choose
    "torchrun": "torch, backend gloo",
}


@functools.cache
def expected(case):
    return reference(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_rank_equals_plain_torch(case):
    params, _ = train(SingleCommunicator(), case)
    assert worst_difference(params, expected(case)) <= case.tolerance


@each_column()
def test_many_ranks_equal_plain_torch(launcher, num_ranks, straight):
    found = read(straight(launcher, num_ranks), "answer")
    assert not errors(found), errors(found)
    differences = {case.name: worst_difference(found[case.name][0], expected(case)) for case in CASES}
    assert not {case.name: differences[case.name] for case in CASES if not differences[case.name] <= case.tolerance}


@each_column()
def test_the_engine_is_the_one_of_the_column(launcher, num_ranks, straight):
    """Guards the tables of this folder; and the start came to its end."""
    result, _ = straight(launcher, num_ranks)
    started = f"hvd_trainer: {num_ranks} ranks on 1 node, engine {ENGINES[launcher]}"
    assert started in result.ok().stdout, result
