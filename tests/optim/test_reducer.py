"""The sums over ranks, below the optimizer."""

import copy

import pytest
import torch

from hvd_trainer.errors import CollectiveError
from hvd_trainer.optim import ways
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.ways import Numbers
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads


def make(comm, *sizes, bucket_bytes=16):
    params = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    return params, Reducer([(f"p{n}", p) for n, p in enumerate(params)], comm, bucket_bytes, "r")


def test_gradients_are_views_and_sums():
    def rank_main(comm):
        (a, b, c), reducer = make(comm, 2, 3, 1)
        ((a * (comm.rank + 1)).sum() + (b.sum() * 10 if comm.rank == 1 else 0)).backward()
        sums = reducer.flush(Numbers(total=float(comm.rank)), weight=1.0, plain=1.0)
        reducer.deliver()
        pointers = {flat.untyped_storage().data_ptr() for flat in reducer.flats}
        assert {p.grad.untyped_storage().data_ptr() for p in (a, b)} <= pointers
        return sums.total, sums.weight, sums.bad, a.grad.tolist(), b.grad.tolist(), c.grad

    for found in run_threads(3, rank_main):
        assert found == (3.0, 3.0, 0.0, [2.0, 2.0], pytest.approx([10.0 / 3] * 3), None)


def test_all_ranks_get_the_same_bits():
    def rank_main(comm):
        (a,), reducer = make(comm, 1000)
        generator = torch.Generator().manual_seed(comm.rank)
        (a * torch.randn(1000, generator=generator)).sum().backward()
        reducer.flush(Numbers())
        reducer.deliver()
        return a.grad.clone()

    found = run_threads(4, rank_main)
    assert all(torch.equal(gradient, found[0]) for gradient in found)


def test_gradients_before_the_reducer_was_made_count():
    def rank_main(comm):
        param = torch.nn.Parameter(torch.zeros(2))
        param.sum().backward()
        reducer = Reducer([("p", param)], comm, 16, "r")
        reducer.flush(Numbers())
        reducer.deliver()
        return param.grad.tolist()

    assert run_threads(2, rank_main) == [[2.0, 2.0]] * 2


def test_holds_gradients():
    def rank_main(comm):
        (a, b), reducer = make(comm, 2, 2)
        states = [reducer.holds_gradients()]
        a.sum().backward()
        states.append(reducer.holds_gradients())
        a.grad.zero_()
        states.append(reducer.holds_gradients())
        return states

    assert run_threads(1, rank_main) == [[False, True, False]]


def test_detach_leaves_parameters_alone():
    def rank_main(comm):
        (a,), reducer = make(comm, 2)
        reducer.detach()
        a.sum().backward()
        return a.grad.untyped_storage().data_ptr() != reducer.flats[0].untyped_storage().data_ptr()

    assert run_threads(1, rank_main) == [True]


def test_discard_waits_for_what_is_under_way():
    def rank_main(comm):
        (a,), reducer = make(comm, 2)
        reducer.begin(armed=True)
        a.sum().backward()
        reducer.end()
        reducer.discard()
        a.grad = None
        a.sum().backward()
        reducer.flush(Numbers())
        reducer.deliver()
        return a.grad.tolist()

    assert run_threads(2, rank_main) == [[2.0, 2.0]] * 2


@pytest.mark.parametrize(
    ("sizes", "words"),
    [([[2], [2, 2]], "rank 1 has 2 trainable tensors, rank 0 has 1"), ([[2], [3]], r"rank 0: p0 \[2\] float32; rank 1: p0 \[3\]")],
)
def test_ranks_with_other_parameters(sizes, words):
    def rank_main(comm):
        with pytest.raises(CollectiveError, match=words):
            make(comm, *sizes[comm.rank])

    run_threads(2, rank_main)


@pytest.mark.parametrize("update_by", ["auto", "tensors"])
@pytest.mark.parametrize("num_ranks", [2, 3])
def test_large_gradients_travel_where_backward_made_them(monkeypatch, num_ranks, update_by):
    """The same parameters as with copies; ranks that skip the layer, micro-batches, and both kinds of zero_grad between."""
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


def test_a_rank_that_skips_a_layer_after_zeros_were_kept():
    """zero_grad(set_to_none=False) leaves zeros, which nobody has changed between backward and step."""

    def rank_main(comm):
        v, w = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
        opt = DistributedOptimizer(torch.optim.SGD([v, w], lr=0.1), comm, bucket_bytes=1, lr_scaling="none")
        for used in (v + w, v + w if comm.rank else v):
            opt.backward(Weighted(used.sum(), 1))
            opt.step()
            opt.zero_grad(set_to_none=False)
        return v.tolist(), w.tolist()

    for v, w in run_threads(2, rank_main):
        assert v == pytest.approx([0.8, 0.8]) and w == pytest.approx([0.85, 0.85])
