"""Rates that differ between ranks are refused on all ranks, whichever way gradients take; and equal ones never are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_trainer.errors import CollectiveError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.same_rates import SameRates, number_of
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads

RATES = st.lists(st.floats(0, 1e6), max_size=4)


@given(RATES, st.integers(1, 5000))
def test_equal_numbers_add_up_to_a_multiple_in_any_order(rates, size):
    number = number_of(rates)
    assert 0 <= number < 2**32 and number == int(number)
    assert float(sum([int(number)] * size)) == size * number == sum([number] * size)


@given(RATES, RATES)
def test_other_rates_have_another_number(a, b):
    assert (number_of(a) == number_of(b)) == (a == b and [str(x) for x in a] == [str(x) for x in b])


@pytest.mark.parametrize("rate", [0.1, 1, torch.tensor(0.1)])
def test_a_rate_that_is_set_is_seen(rate):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=rate)
    rates = SameRates(optimizer)
    before = rates.number()
    assert before == rates.number()
    optimizer.param_groups[0]["lr"] *= 2  # a tensor in place
    assert rates.number() not in (before, 0.0)


@pytest.mark.parametrize("way", [{}, {"update_by": "tensors"}, {"overlap": False}, {"reduce_through": "messages"}])
@pytest.mark.parametrize("size", [1, 2000, 400_000])  # by one message or one wait; in several; in shards
def test_a_scheduler_that_watches_its_own_rank_is_refused(size, way):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(size))
        sgd = torch.optim.SGD([w], lr=0.5)
        opt = DistributedOptimizer(sgd, comm, lr_scaling="none", **way)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5)
        seen = []
        for loss in ((3.0, 2.0, 1.0), (3.0, 2.0, 2.0), (3.0, 2.0, 1.0))[comm.rank]:
            opt.zero_grad()
            opt.backward(Weighted((w * 2).sum(), 2))
            opt.step()
            plateau.step(loss)
            seen.append(w[-1].item())
        opt.zero_grad()
        opt.backward(Weighted((w * 2).sum(), 2))
        with pytest.raises(CollectiveError, match="rates differ at step 4: 0.5 on rank 0, 2; 0.25 on rank 1; no parameter was changed"):
            opt.step()
        assert w[-1].item() == seen[-1]
        sgd.param_groups[0]["lr"] = 0.125  # and with equal ones it goes on
        opt.zero_grad()
        opt.backward(Weighted((w * 2).sum(), 2))
        opt.step()
        return seen[-1] - w[-1].item()

    assert run_threads(3, rank_main) == [0.125] * 3


def test_rates_that_look_alike_are_shown_in_full():
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(1))
        opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.3), comm, lr_scaling="none")
        opt.param_groups[0]["lr"] = 0.1 + 0.2 if comm.rank else 0.3
        opt.backward(Weighted(w.sum(), 1))
        with pytest.raises(CollectiveError, match="0.3 on rank 0; 0.30000000000000004 on rank 1"):
            opt.step()

    run_threads(2, rank_main)
