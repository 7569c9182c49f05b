"""Who updates: the same on all ranks, alone in what it writes to, and gone when it is over."""

import gc
import weakref

import pytest
import torch

from hvd_trainer.errors import NonFiniteError
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads
from tests.optim.test_flat_update import FLAT, SHARDS, loss_of, make_model, reference, train, wrap


@pytest.mark.parametrize("first", ["shards", "tensors"])
def test_two_optimizers_of_one_model_made_before_either_steps(first):
    """Each rank writes to memory that all share for the second one: with two ranks the step would be made twice."""

    def rank_main(comm):
        params = make_model()
        one = wrap(torch.optim.SGD(params, lr=0.1), comm, reduce_through="shared", update_by=first)
        two = wrap(torch.optim.SGD(params, lr=0.01), comm, **{**SHARDS, "update_by": "auto"}, bucket_bytes=100)
        train(params, one, comm, 2)
        train(params, two, comm, 2, first=2)
        train(params, one, comm, 1, first=4)
        return [p.detach().clone() for p in params]

    expected = make_model()
    one, two = (torch.optim.SGD(expected, lr=lr) for lr in (0.1, 0.01))
    for optimizer, start, steps in ((one, 0, 2), (two, 2, 2), (one, 4, 1)):
        reference(None, 2, steps, expected, optimizer, first=start)
    for params in run_threads(2, rank_main):
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reduce_through", ["messages", "shared"])
def test_a_hook_on_one_rank_alone_lets_all_update_alike(reduce_through):
    """Flat and tensor by tensor, AdamW rounds differently: replicas would part."""

    def rank_main(comm):
        params = [torch.nn.Parameter(torch.linspace(-1, number, 300)) for number in range(3)]
        optimizer = torch.optim.AdamW(params, lr=0.01)
        if comm.rank == 0:
            optimizer.register_step_post_hook(lambda *args: None)
        opt = wrap(optimizer, comm, reduce_through=reduce_through)
        for step in range(20):
            opt.backward(Weighted(loss_of(params, step, comm.rank), 1))
            opt.step()
            opt.zero_grad()
        return [p.detach() for p in params], opt.describe_reduction()

    (mine, text), (theirs, other) = run_threads(2, rank_main)
    assert all(map(torch.equal, mine, theirs))
    assert text == other and "each rank updates all parameters" in text


@pytest.mark.parametrize("how", ["release", "freeze"])
def test_an_update_that_was_made_again_leaves_nothing_behind(how):
    """Layers unfrozen one after the other: each had left its buffers and its mapping until the optimizer's end."""

    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **SHARDS)
        left = []
        for step in range(3):
            train(params, opt, comm, 1, first=step)
            left.append((weakref.ref(opt._updater.flat), weakref.ref(opt._current.reducer.way.memory)))
            opt.release() if how == "release" else params[0].requires_grad_(bool(step % 2))
        train(params, opt, comm, 1, first=3)
        gc.collect()
        return [each() for pair in left for each in pair]

    assert run_threads(2, rank_main) == [[None] * 6] * 2


@pytest.mark.parametrize("hosts", ["aa", "aab"])
@pytest.mark.parametrize("before", [None, 5.0])
def test_a_clipping_limit_set_after_backward_counts_in_this_step(hosts, before):
    """Buckets that ranks have summed by then have no squares; on the last rank, which has no data, none was looked at yet."""

    def rank_main(comm):
        params = [torch.nn.Parameter(torch.zeros(64, dtype=torch.float64)) for _ in range(3)]
        opt = wrap(torch.optim.SGD(params, lr=1.0), comm, bucket_bytes=1, clip_norm=before, **SHARDS)
        found = []
        for limit in (1.0, 2.0, None, 1.0):
            if comm.rank < comm.size - 1:
                opt.backward(Weighted(sum((p * 3).sum() for p in params), 1))
            opt.clip_norm = limit
            start = params[0][0].item()
            opt.step()
            opt.zero_grad()
            found.append((opt.last_grad_norm, start - params[0][0].item()))
        return found

    norm = 3 * (3 * 64) ** 0.5
    for found in run_threads(len(hosts), rank_main, hosts=hosts):
        assert [moved for _, moved in found] == pytest.approx([3 / norm, 6 / norm, 3.0, 3 / norm], rel=1e-6)
        assert [each for each, _ in found] == pytest.approx([norm] * 4)


def test_a_norm_that_overflows_in_a_step_whose_limit_came_late():
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(64))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, **SHARDS)
        opt.backward(Weighted((w * 1e25).sum(), 1))
        opt.clip_norm = 1.0
        with pytest.raises(NonFiniteError, match="norm of the averaged gradient is inf"):
            opt.step()
        return w.count_nonzero().item()

    assert run_threads(2, rank_main) == [0, 0]


RESTARTS = {
    "entry": lambda state, param: state.update({param: {}}),
    "tensor": lambda state, param: state[param].update(momentum_buffer=torch.ones_like(param)),
    "pop": lambda state, param: state.pop(param),
    "in place": lambda state, param: state[param]["momentum_buffer"].zero_(),
}


@pytest.mark.parametrize("options", [SHARDS, FLAT], ids=["shards", "flat"])
@pytest.mark.parametrize("how", RESTARTS)
def test_state_that_the_user_replaces_is_the_one_that_counts(how, options):
    def restart(optimizer, params):
        for param in params:
            RESTARTS[how](optimizer.state, param)

    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **options)
        train(params, opt, comm, 2)
        restart(opt, params)
        train(params, opt, comm, 2, first=2)
        assert opt._updater.flat is not None
        return [p.detach().clone() for p in params], [opt.state[p]["momentum_buffer"].clone() for p in params]

    expected = make_model()
    optimizer = torch.optim.SGD(expected, lr=0.1, momentum=0.9)
    reference(None, 2, 2, expected, optimizer)
    restart(optimizer, expected)
    reference(None, 2, 2, expected, optimizer, first=2)
    for params, momentum in run_threads(2, rank_main):
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(momentum, [optimizer.state[p]["momentum_buffer"] for p in expected], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [SHARDS, FLAT], ids=["shards", "flat"])
def test_momentum_that_is_switched_on_later(options):
    """From 0, as some warm-ups do: its buffers are made then, and belong to the state that is saved."""

    def switch(optimizer, step):
        optimizer.param_groups[0]["momentum"] = 0.9 if step in (2, 3, 5) else 0.0

    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.0), comm, **options)
        for step in range(6):
            switch(opt, step)
            train(params, opt, comm, 1, first=step)
        assert opt._updater.flat is not None
        return [p.detach().clone() for p in params], [opt.state[p]["momentum_buffer"].clone() for p in params]

    expected = make_model()
    optimizer = torch.optim.SGD(expected, lr=0.1, momentum=0.0)
    for step in range(6):
        switch(optimizer, step)
        reference(None, 2, 1, expected, optimizer, first=step)
    for params, momentum in run_threads(2, rank_main):
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(momentum, [optimizer.state[p]["momentum_buffer"] for p in expected], rtol=1e-9, atol=1e-12)
