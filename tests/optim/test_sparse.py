"""Sparse gradients on several ranks against one process: which rows move, and how."""

import pytest
import torch

from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads

NUM_ROWS = 7
# Three steps; in each, one list of row numbers a rank. Rank 1 has none in the second; row 6 is never used.
STEPS = [[[0, 1, 1], [2]], [[3, 3, 0], []], [[5], [4, 0]]]
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1),
    "sparse adam": lambda params: torch.optim.SparseAdam(params, lr=0.1),
}


def make_embedding():
    weights = torch.linspace(-1, 1, 2 * NUM_ROWS, dtype=torch.float64).view(NUM_ROWS, 2)  # ranks are threads: no seeds
    return torch.nn.Embedding.from_pretrained(weights.clone(), freeze=False, sparse=True)


def loss_of(embedding, rows):
    return embedding(torch.tensor(rows)).sin().sum()


def one_process(make):
    embedding = make_embedding()
    optimizer = make(embedding.parameters())
    for step in STEPS:
        rows = [row for share in step for row in share]
        optimizer.zero_grad()
        (loss_of(embedding, rows) / len(rows)).backward()
        optimizer.step()
    return embedding.weight.detach()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad makes its own sparse tensors
@pytest.mark.parametrize("micro", [False, True], ids=["whole", "micro"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_one_process(name, micro):
    def rank(comm):
        embedding = make_embedding()
        opt = DistributedOptimizer(OPTIMIZERS[name](list(embedding.parameters())), comm, lr_scaling="none")
        for step in STEPS:
            share = step[comm.rank]
            parts = [[row] for row in share] if micro else [share][: len(share)]
            for number, rows in enumerate(parts):
                opt.backward(Weighted(loss_of(embedding, rows), len(rows)), last=number == len(parts) - 1)
            opt.step()
            opt.zero_grad()
        return embedding.weight.detach()

    for found in run_threads(2, rank):
        torch.testing.assert_close(found, one_process(OPTIMIZERS[name]), rtol=1e-12, atol=0)


def test_dense_on_one_rank_makes_it_dense_on_all():
    def rank(comm):
        embedding = make_embedding()
        opt = DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=0.1), comm, lr_scaling="none")
        total = loss_of(embedding, [0, 1]) if comm.rank == 0 else embedding.weight.sum()
        opt.backward(Weighted(total, 1))
        opt.step()
        assert not embedding.weight.grad.is_sparse
        return embedding.weight.detach().clone()

    first, second = run_threads(2, rank)
    assert torch.equal(first, second)


def test_clipping_sees_the_mean():
    def rank(comm):
        embedding = make_embedding()
        opt = DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), comm, lr_scaling="none", clip_norm=0.5)
        before = embedding.weight.detach().clone()
        opt.backward(Weighted(embedding(torch.tensor([comm.rank])).sum() * 10, 1))
        opt.step()
        return (embedding.weight.detach() - before).norm().item()

    assert run_threads(2, rank) == pytest.approx([0.5, 0.5])
