"""The sums over ranks, below the optimizer."""


import pytest
import torch

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
        reducer.places.deliver()
        pointers = {flat.untyped_storage().data_ptr() for flat in reducer.places.flats}
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
        reducer.places.deliver()
        return a.grad.clone()

    found = run_threads(4, rank_main)
    assert all(torch.equal(gradient, found[0]) for gradient in found)


def test_gradients_before_the_reducer_was_made_count():
    def rank_main(comm):
        param = torch.nn.Parameter(torch.zeros(2))
        param.sum().backward()
        reducer = Reducer([("p", param)], comm, 16, "r")
        reducer.flush(Numbers())
        reducer.places.deliver()
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
        return a.grad.untyped_storage().data_ptr() != reducer.places.flats[0].untyped_storage().data_ptr()

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
        reducer.places.deliver()
        return a.grad.tolist()

    assert run_threads(2, rank_main) == [[2.0, 2.0]] * 2


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
