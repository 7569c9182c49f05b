"""The norms that an optimizer takes while it reduces are those that are collected in the open, by other hooks."""

import threading

import pytest
import torch

import hvd_trainer as ht
from tests import fake_comm
from tests.optim.norms_in_the_open import watch

_one_at_a_time = threading.Lock()  # ranks that are threads share torch's random state


class Kept:
    def __init__(self, every=1):
        self.norms, self.every, self.asked = [], every, []

    def wants_norms(self, step):
        self.asked.append(step)
        return step % self.every == 0

    def observe(self, norms):
        self.norms.append(norms)


def same(found, expected, rel=1e-5):
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected):
        assert a.local_sq == pytest.approx(b.local_sq, rel=rel) and a.mean_sq == pytest.approx(b.mean_sq, rel=rel)
        assert (a.weight, a.num_parts) == (b.weight, b.num_parts)


def make_model():
    with _one_at_a_time:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.Tanh(), torch.nn.Linear(300, 2))


def train(comm, parts, *, scale=None, dtype=torch.float32, steps=3, **options):
    """`parts[rank]`: sizes of this rank's micro-batches in each step. Two groups; small buckets, so that some are sent early."""
    model = make_model().to(dtype)
    groups = [{"params": model[0].parameters()}, {"params": [model[2].bias, model[2].weight], "lr": 0.05}]
    opt = ht.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1, momentum=0.9), comm, bucket_bytes=2048, **options)
    scaler = ht.GradScaler("cpu", init_scale=scale) if scale else None
    if scaler:
        scaler.factor(comm.device)  # makes its state, also on a rank whose first step has no data
    mine, reference = Kept(), watch(opt)
    opt.add_norms_observer(mine)
    generator = torch.Generator().manual_seed(comm.rank)
    for _ in range(steps):
        sizes = parts[comm.rank]
        for number, size in enumerate(sizes):
            x = torch.randn(size, 4, generator=generator, dtype=dtype)
            loss = ht.Weighted(model(x).square().sum(), size)
            opt.backward(loss, last=number == len(sizes) - 1, scaler=scaler)
        if scaler:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
        opt.zero_grad()
    return mine.norms, reference


CASES = {
    "even": [[4], [4]],
    "uneven micro-batches": [[5, 3, 1], [2, 2]],
    "a rank without data": [[3, 3], []],
}


@pytest.mark.parametrize("parts", CASES.values(), ids=CASES)
@pytest.mark.parametrize(
    "options", [{}, {"overlap": False}, {"clip_norm": 1e-3}, {"scale": 1024.0}, {"dtype": torch.float64}, {"update_by": "tensors"}, {"reduce_through": "messages"}, {"reduce_through": "messages", "compression": "bf16"}], ids=str
)
def test_as_collected_in_the_open(parts, options):
    for norms, reference in fake_comm.run_threads(2, lambda comm: train(comm, parts, **options)):
        same(norms, reference, rel=1e-2 if "compression" in options else 1e-5)
        assert norms[0].num_parts == sum(map(len, parts)) and norms[0].weight == sum(map(sum, parts))
        assert len(norms[0].mean_sq) == 2


def test_all_ranks_get_the_same_bits():
    first, second = fake_comm.run_threads(2, lambda comm: train(comm, CASES["uneven micro-batches"]))
    assert first[0] == second[0]


def test_one_rank_and_frozen_parameters():
    def rank(comm):
        model = make_model()
        opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), comm)
        mine, reference = Kept(), watch(opt)
        opt.add_norms_observer(mine)
        for step in range(4):
            model[0].requires_grad_(step % 2 == 0)  # the bucket plan is made anew each time
            for size, last in ((2, False), (3, True)):
                opt.backward(ht.Weighted(model(torch.ones(size, 4)).sum(), size), last=last)
            opt.step()
            opt.zero_grad()
        return mine.norms, reference

    same(*fake_comm.run_threads(1, rank)[0])


def test_only_the_steps_that_somebody_wants():
    def rank(comm):
        model = make_model()
        opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), comm)
        every, third = Kept(every=2), Kept(every=3)
        opt.add_norms_observer(every)
        opt.add_norms_observer(third)
        for _ in range(6):
            opt.backward(ht.Weighted(model(torch.ones(2, 4)).sum(), 2))
            opt.step()
            opt.zero_grad()
        assert every.asked == third.asked == [1, 2, 3, 4, 5, 6]
        return len(every.norms), len(third.norms)

    assert fake_comm.run_threads(2, rank) == [(3, 2)] * 2


def test_a_discarded_step_is_forgotten_and_foreign_losses_are_not_seen():
    def rank(comm):
        model = make_model()
        opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), comm)
        mine = Kept()
        opt.add_norms_observer(mine)
        for again in range(2):
            if again:
                opt.backward(ht.Weighted(model(torch.ones(7, 4) * 9).sum(), 7), last=False)
                opt.zero_grad()
                torch.autograd.grad(model(torch.ones(1, 4)).sum(), list(model.parameters()))
            opt.backward(ht.Weighted(model(torch.ones(2, 4)).sum(), 2))
            opt.step()
            opt.zero_grad()
        assert mine.norms[0] == mine.norms[1] and mine.norms[0].weight == 4
        model(torch.ones(2, 4)).sum().backward()  # weights are not known: nobody is told anything
        opt.step()
        return len(mine.norms)

    assert fake_comm.run_threads(2, rank) == [2, 2]


def test_overflow_is_handed_out_as_it_is():
    def rank(comm):
        w = torch.nn.Parameter(torch.ones(2))
        opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), comm)
        mine, scaler = Kept(), ht.GradScaler("cpu", init_scale=1e38)
        opt.add_norms_observer(mine)
        opt.backward(ht.Weighted((w * (100.0 if comm.rank else 1.0)).sum(), 1), scaler=scaler)
        scaler.step(opt)
        scaler.update()
        return mine.norms[0].is_finite, w.tolist()

    assert fake_comm.run_threads(2, rank) == [(False, [1.0, 1.0])] * 2


def test_sparse_gradients_count():
    def rank(comm):
        table = torch.nn.Embedding(5, 2, sparse=True)
        with torch.no_grad():
            table.weight.fill_(1.0)
        opt = ht.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), comm)
        mine = Kept()
        opt.add_norms_observer(mine)
        opt.backward(ht.Weighted(table(torch.tensor([1, 1, 2 + comm.rank])).sum(), 3))
        opt.step()
        return mine.norms[0]

    # Each rank: (2 + 2) / 3 and (1 + 1) / 3 squared; averaged: row 1 as it is, rows 2 and 3 half of it.
    norms = fake_comm.run_threads(2, rank)[0]
    assert norms.local_sq[0] == pytest.approx((2 * 4 + 2 * 1) / 9) and norms.mean_sq[0] == pytest.approx((2 * 4 + 4 * 0.25) / 9)
