"""The sums over ranks, below the optimizer."""

import pytest
import torch

from hvd_trainer.errors import CollectiveError
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.ways import Numbers
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
