"""The table "same answer": every kind of model, on every engine, against one process."""

import pytest

from hvd_trainer.comm.single import SingleCommunicator
from tests.multi.model_table import COLUMNS, column
from tests.multi.models import KINDS, difference, reference, train

QUICK = ("mpi, 3",)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad makes its own sparse tensors
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_rank(kind):
    assert difference(train(kind, SingleCommunicator()), reference(kind, 1)) <= kind.tolerance


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COLUMNS])
def test_several_ranks(name, tmp_path):
    found = column(name, tmp_path)
    assert not {kind.name: found[kind.name] for kind in KINDS if not found[kind.name] <= kind.tolerance}
