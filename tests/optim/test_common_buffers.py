"""Buffers for evaluation: equal on all ranks inside the block, each rank's own outside."""

import pytest
import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.replicas import common_buffers
from tests.fake_comm import run_threads


def model_of(rank):
    model = torch.nn.BatchNorm1d(2)
    model.running_mean.fill_(rank + 1)
    model.num_batches_tracked.fill_(10 * rank)
    return model


@pytest.mark.parametrize(("how", "expected"), [("rank0", [1, 1, 1]), ("mean", [2, 2, 2]), ("own", [1, 2, 3])])
def test_inside_and_outside(how, expected):
    def rank(comm):
        model = model_of(comm.rank)
        with common_buffers(model, comm, how):
            inside = model.running_mean[0].item(), model.num_batches_tracked.item()
        return inside, model.running_mean[0].item(), model.num_batches_tracked.item()

    found = run_threads(3, rank)
    assert [inside[0] for inside, *_ in found] == expected
    assert [inside[1] for inside, *_ in found] == ([0, 10, 20] if how == "own" else [0, 0, 0])
    assert [outside for _, *outside in found] == [[1, 0], [2, 10], [3, 20]]


def test_restored_after_an_error_and_unknown_how_refused():
    def rank(comm):
        model = model_of(comm.rank)
        with pytest.raises(ZeroDivisionError), common_buffers(model, comm, "rank0"):
            1 / 0  # noqa: B018
        with pytest.raises(ConfigError, match="median"), common_buffers(model, comm, "median"):
            pass
        return model.running_mean[0].item()

    assert run_threads(2, rank) == [1, 2]
