"""State that somebody replaces is taken up by all ranks together, or by none."""

import pytest
import torch

from hvd_trainer.errors import CollectiveError
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads
from tests.optim.test_flat_update import FLAT, SHARDS, make_model, reference, train, wrap

BOTH = pytest.mark.parametrize("options", [SHARDS, FLAT], ids=["shards", "flat"])


@BOTH
@pytest.mark.parametrize("how", ["reading", "the same again"])
def test_one_rank_alone_that_touches_the_state(options, how):
    """A logger on rank 0: `opt.state[p]` makes an entry. The others must not be waited for where they do not come."""
    momentum = 0.0 if how == "reading" else 0.9

    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=momentum), comm, **options)
        train(params, opt, comm, 2)
        if comm.rank == 0:
            for param in params:
                state = opt.state[param]
                opt.state[param] = dict(state)
        train(params, opt, comm, 2, first=2)
        assert opt._updater.flat is not None
        return [p.detach().clone() for p in params]

    expected = make_model()
    reference(None, 2, 4, expected, torch.optim.SGD(expected, lr=0.1, momentum=momentum))
    for params in run_threads(2, rank_main):
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)


@BOTH
def test_state_replaced_on_one_rank_alone_is_an_error_on_all(options):
    """Replicas would part, or parts of one momentum be forgotten and others not."""

    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **options)
        train(params, opt, comm, 2)
        if comm.rank == 1:
            for param in params:
                opt.state[param] = {}
        before = [p.detach().clone() for p in params]
        with pytest.raises(CollectiveError, match=r"at step 3 .* differs: momentum_buffer on rank 0, none on rank 1(.|\n)*on every rank"):
            train(params, opt, comm, 1, first=2)
        return all(map(torch.equal, before, params))

    assert run_threads(2, rank_main) == [True, True]


def test_a_number_of_steps_set_on_one_rank_alone_is_an_error_on_all():
    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.Adam(params, lr=0.1), comm, **SHARDS)
        train(params, opt, comm, 2)
        for param in params if comm.rank == 1 else ():
            opt.state[param]["step"] = torch.tensor(7.0)
        with pytest.raises(CollectiveError, match="step=2 on rank 0, .*step=7 on rank 1"):
            train(params, opt, comm, 1, first=2)

    run_threads(2, rank_main)


def test_momentum_switched_on_where_a_rank_has_no_share():
    """It has no group in which it would see that, and must make room for the new state with the others."""

    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(1))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, **SHARDS)
        for momentum in (0.0, 0.5, 0.5):
            opt.param_groups[0]["momentum"] = momentum
            opt.backward(Weighted(w.sum(), 1))
            opt.step()
            opt.zero_grad()
        return w.item(), opt.state[w]["momentum_buffer"].item()

    assert run_threads(3, rank_main) == [(-3.5, 1.5)] * 3
