"""The steps of the columns, without a launcher: ours on threads against the bound with the whole batch."""

import threading

import pytest
import torch

from hvd_trainer.bench import models, ways
from hvd_trainer.bench.columns import BY_NAME, parse
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads

MLP = Workload("mlp", "")
ONE_AT_A_TIME = threading.Lock()  # the ranks are threads, and a model is drawn from the generator that they share


def meeting(comm):
    return ways.Meeting(comm.rank, comm.size, lambda: comm.barrier("b"), comm.close, comm)


def build(comm):
    with ONE_AT_A_TIME:
        return models.build(MLP, comm.rank, comm.size)


def trained(task, step, num_steps=3):
    for number in range(num_steps):
        step(task.batches[number])
    return torch.cat([p.detach().flatten() for p in task.model.parameters()])


def test_ours_on_two_ranks_is_the_bound_with_both_batches():
    def rank(comm):
        task = build(comm)
        return trained(task, ways.ours(task, parse("ours-mpi:bucket_bytes=4096"), meeting(comm)))

    both = run_threads(2, rank)
    one, two = (models.build(MLP, r, 2) for r in (0, 1))
    one.batches = [tuple(torch.cat(pair) for pair in zip(a, b)) for a, b in zip(one.batches, two.batches)]
    alone = trained(one, ways.compute(one, BY_NAME["compute"], None))
    assert torch.equal(both[0], both[1])
    assert torch.allclose(both[0], alone, atol=1e-6)


def test_ours_takes_a_plain_mean_like_a_weighted_sum():
    def rank(comm):
        task = build(comm)
        weighted = task.loss
        if as_mean:
            task.loss = lambda model, batch: (loss := weighted(model, batch)).total / loss.weight
        return trained(task, ways.ours(task, BY_NAME["ours-mpi"], meeting(comm)))

    as_mean = False
    sums = run_threads(2, rank)
    as_mean = True
    means = run_threads(2, rank)
    assert torch.allclose(sums[0], means[0], atol=1e-6)


@pytest.mark.parametrize("as_mean", [False, True])
def test_backward_is_that_of_the_mean(as_mean):
    w = torch.tensor([2.0], requires_grad=True)
    total = (w * 8).sum()
    ways.backward(total / 4 if as_mean else Weighted(total, 4))
    assert w.grad.item() == 2.0


def test_raw_buckets_hold_neighbours_up_to_their_size(monkeypatch):
    monkeypatch.setattr(ways, "RAW_BUCKET_FLOATS", 10)
    params = [torch.nn.Parameter(torch.zeros(n)) for n in (4, 6, 1, 20, 3, 3)]
    sizes = [[p.numel() for p in group] for group in ways.in_buckets(params)]
    assert sizes == [[4, 6], [1], [20], [3, 3]]
