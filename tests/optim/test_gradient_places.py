"""Where gradients lie: taken without a copy where nobody else holds them, and left alone where somebody does."""

import copy

import pytest
import torch

from hvd_trainer.optim import small_messages, ways
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads


@pytest.mark.parametrize("update_by", ["auto", "tensors"])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_large_gradients_travel_where_backward_made_them(monkeypatch, num_ranks, update_by):
    """The same parameters as with copies; ranks that skip the layer, micro-batches, and both kinds of zero_grad between."""
    monkeypatch.setattr(small_messages, "MOST_BYTES", 0)
    torch.manual_seed(0)  # not by each rank: threads draw from one generator
    start = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 2)).double()

    def train(comm, taken_bytes):
        monkeypatch.setattr(ways, "TAKEN_BYTES", taken_bytes)
        model = copy.deepcopy(start)
        opt = DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=0.01), comm, bucket_bytes=1, update_by=update_by, reduce_through="messages"
        )
        addresses = set()
        for step in range(6):
            x = torch.randn(4, 64, generator=torch.Generator().manual_seed(10 * step + comm.rank)).double()
            if step == 3 and comm.rank:  # on these ranks the first layer has no gradient
                opt.backward(Weighted(model[2](x[:, :48]).square().sum(), 4))
            else:
                opt.backward(Weighted(model(x).square().sum(), 4), last=step != 4)
            if step == 4:
                opt.backward(Weighted(model(2 * x).square().sum(), 4))
            opt.step()
            addresses.add(model[0].weight.grad.data_ptr())
            opt.zero_grad(set_to_none=step != 2)
        return [param.detach().clone() for param in model.parameters()], len(addresses)

    copied = run_threads(num_ranks, lambda comm: train(comm, 1 << 40))
    taken = run_threads(num_ranks, lambda comm: train(comm, 1024))
    for (mine, _), (theirs, _) in zip(taken, copied):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs))
    assert all(number == 1 for _, number in copied)
    assert any(number > 1 for _, number in taken)


def test_a_gradient_that_somebody_keeps_is_not_changed(monkeypatch):
    monkeypatch.setattr(small_messages, "MOST_BYTES", 0)
    monkeypatch.setattr(ways, "TAKEN_BYTES", 1)

    def rank_main(comm):
        w = torch.nn.Parameter(torch.ones(8))
        opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.1), comm, reduce_through="messages")
        kept = []
        w.register_hook(kept.append)
        opt.backward(Weighted(w.square().sum() * (comm.rank + 1), 1))
        opt.synchronize()
        return kept[0].tolist(), w.grad.tolist()

    found = run_threads(2, rank_main)
    assert [mean for _, mean in found] == [[3.0] * 8] * 2
    assert [mine for mine, _ in found] == [[2.0] * 8, [4.0] * 8]


def test_a_gradient_that_a_hook_after_backward_keeps_is_not_changed(monkeypatch):
    """It is the very tensor that would be taken: whether it stays this rank's must not depend on how large the layer is."""
    monkeypatch.setattr(ways, "TAKEN_BYTES", 1)

    def rank_main(comm):
        w, kept = torch.nn.Parameter(torch.ones(8)), []
        w.register_post_accumulate_grad_hook(lambda param: kept.append(param.grad))
        opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.1), comm, reduce_through="messages")
        opt.backward(Weighted((w * (comm.rank + 1)).sum(), 1))
        opt.synchronize()
        return kept[0][0].item(), w.grad[0].item()

    assert run_threads(2, rank_main) == [(1.0, 1.5), (2.0, 1.5)]
