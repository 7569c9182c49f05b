"""The table "same answer": every kind of model, on every engine, against one process."""

import pytest

from hvd_trainer.comm.single import SingleCommunicator
from tests.golden.conftest import each_column, errors, read
from tests.multi.model_table import COLUMNS
from tests.multi.models import KINDS, difference, reference, train


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad makes its own sparse tensors
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_rank(kind):
    assert difference(train(kind, SingleCommunicator()), reference(kind, 1)) <= kind.tolerance


@each_column([(launcher, num_ranks) for launcher, num_ranks, _ in COLUMNS.values()])
def test_several_ranks(launcher, num_ranks, straight):
    found = read(straight(launcher, num_ranks), "models")
    assert not errors(found), errors(found)
    assert not {kind.name: found[kind.name] for kind in KINDS if not found[kind.name] <= kind.tolerance}
