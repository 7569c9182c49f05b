"""State that somebody replaces is taken up by all ranks together, or by none."""

import copy

import pytest
import torch

from hvd_trainer.errors import CollectiveError, LossError
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


# -- state that is changed in place, where it is not one rank's or not one parameter's alone ------------------------------------------

IN_PLACE = {
    "momentum": (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), "momentum_buffer"),
    "adam": (lambda params: torch.optim.Adam(params, lr=0.1), "exp_avg"),
    "adam's steps": (lambda params: torch.optim.Adam(params, lr=0.1), "step"),
}


@pytest.mark.parametrize(("hosts", "who"), [("aa", (0, 1)), ("aa", (1,)), ("aab", (2,))])
@pytest.mark.parametrize("change", [lambda value: value.mul_(0.5), lambda value: value.add_(1)], ids=["mul_", "add_"])
@pytest.mark.parametrize("which", IN_PLACE)
def test_state_that_ranks_share_must_not_be_changed_in_place_by_each(which, change, hosts, who):
    make, key = IN_PLACE[which]

    def rank_main(comm):
        params = make_model()
        opt = wrap(make(params), comm, **SHARDS)
        train(params, opt, comm, 2)
        for param in params if comm.rank in who else ():
            change(opt.state[param][key])
        before = [p.detach().clone() for p in params]
        ranks = ", ".join(map(str, who))
        for _ in range(2):  # it is spoilt from now on
            with pytest.raises(LossError, match=rf"'{key}' was changed in place before step 3, on rank {ranks}: (.|\n)*on top of(.|\n)*update_by=\"tensors\""):
                train(params, opt, comm, 1, first=2)
            opt.zero_grad()
        return all(map(torch.equal, before, params))

    assert all(run_threads(len(hosts), rank_main, hosts=hosts))


def test_counters_that_parameters_share_must_not_be_changed_in_place():
    """Flat buffers of each rank's own: `step.add_(5)` for each of four parameters would add 20."""

    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.Adam(params, lr=0.1), comm, **FLAT)
        train(params, opt, comm, 2)
        for param in params:
            opt.state[param]["exp_avg"].mul_(0.5)  # each rank's own
        train(params, opt, comm, 1, first=2)
        for param in params:
            opt.state[param]["step"].add_(5)
        with pytest.raises(LossError, match="'step' was changed in place before step 4, on rank 0, 1: it is one number for many parameters"):
            train(params, opt, comm, 1, first=3)

    run_threads(2, rank_main)


def replace(opt, params, key):
    for param in params:
        opt.state[param][key] = opt.state[param][key] + 1


def release(opt, params, key):
    opt.release()
    for param in params:
        opt.state[param][key].add_(1)


def load(opt, params, key):
    """As after the error, whose state is spoilt."""
    saved = copy.deepcopy(opt.state_dict())
    opt.comm.barrier("all have a copy")
    for param in params:
        opt.state[param][key].mul_(0.5)
    for state in saved["state"].values():
        state[key].add_(1)
    opt.load_state_dict(saved)


def to_zero(opt, params, key):
    for param in params:
        opt.state[param][key].zero_()


WAYS_OUT = {"replace": replace, "release": release, "load": load, "zeros": to_zero}


@BOTH
@pytest.mark.parametrize("how", WAYS_OUT)
@pytest.mark.parametrize("which", IN_PLACE)
def test_ways_to_change_state_that_mean_on_all_ranks_what_they_mean_on_one(which, how, options):
    make, key = IN_PLACE[which]

    def rank_main(comm):
        params = make_model()
        opt = wrap(make(params), comm, **options)
        train(params, opt, comm, 2)
        comm.barrier()
        WAYS_OUT[how](opt, params, key)
        train(params, opt, comm, 2, first=2)
        assert opt._updater.flat is not None
        return [p.detach().clone() for p in params], [opt.state[p][key].clone() for p in params]

    expected = make_model()
    optimizer = make(expected)
    reference(None, 2, 2, expected, optimizer)
    for param in expected:
        value = optimizer.state[param][key]
        value.zero_() if how == "zeros" else value.add_(1)
    reference(None, 2, 2, expected, optimizer, first=2)
    for params, state in run_threads(2, rank_main):
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(state, [optimizer.state[p][key] for p in expected], rtol=1e-9, atol=1e-12)


def test_tensors_of_a_state_dict_are_those_that_ranks_share():
    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **SHARDS)
        train(params, opt, comm, 2)
        saved = opt.state_dict()
        for state in saved["state"].values():
            state["momentum_buffer"].mul_(0.5)
        opt.load_state_dict(saved)
        with pytest.raises(LossError, match="'momentum_buffer' was changed in place"):
            train(params, opt, comm, 1, first=2)

    run_threads(2, rank_main)


def test_counters_set_to_zero_in_an_update_of_several_pieces():
    """Each piece but the first has a counter of its own."""

    def rank_main(comm, options):
        w = torch.nn.Parameter(torch.zeros(200_000))
        opt = wrap(torch.optim.Adam([w], lr=0.1), comm, **options)
        for step in range(3):
            opt.backward(Weighted((w * (step + 1.0)).sum(), 1))
            opt.step()
            opt.zero_grad()
            if step == 1:
                comm.barrier()
                for value in opt.state[w].values():
                    value.zero_()
        return w.detach().clone()

    plain = torch.nn.Parameter(torch.zeros(200_000))
    optimizer = torch.optim.Adam([plain], lr=0.1)
    for step in range(3):
        plain.grad = torch.full_like(plain, step + 1.0)
        optimizer.step()
        for value in optimizer.state[plain].values() if step == 1 else ():
            value.zero_()
    for options in (SHARDS, FLAT):
        for w in run_threads(2, lambda comm, options=options: rank_main(comm, options)):
            torch.testing.assert_close(w, plain.detach())


@BOTH
def test_after_an_error_about_unlike_state_all_ranks_take_up_what_makes_it_alike(options):
    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **options)
        train(params, opt, comm, 2)
        for rank in (1, 0):
            comm.barrier()
            if comm.rank == rank:
                for param in params:
                    opt.state[param] = {}
            if rank:
                with pytest.raises(CollectiveError, match="differs"):
                    train(params, opt, comm, 1, first=2)
                opt.zero_grad()
        train(params, opt, comm, 2, first=2)
        return [p.detach().clone() for p in params]

    expected = make_model()
    optimizer = torch.optim.SGD(expected, lr=0.1, momentum=0.9)
    reference(None, 2, 2, expected, optimizer)
    optimizer.state.clear()
    reference(None, 2, 2, expected, optimizer, first=2)
    for params in run_threads(2, rank_main):
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)


@BOTH
@pytest.mark.parametrize("rank", [0, 1])
def test_momentum_switched_on_by_one_rank_alone_is_an_error_on_all(options, rank):
    """It makes state there, for which the others make no room: they waited for ever, or found nothing under its key."""

    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1), comm, **options)
        train(params, opt, comm, 2)
        if comm.rank == rank:
            opt.param_groups[0]["momentum"] = 0.9
        before = [p.detach().clone() for p in params]
        values = "0.9 on rank 0, 0 on rank 1" if rank == 0 else "0 on rank 0, 0.9 on rank 1"
        with pytest.raises(CollectiveError, match=rf"step 3 .*param_groups\[0\]\[\"momentum\"\] differs: {values}"):
            train(params, opt, comm, 1, first=2)
        assert all(map(torch.equal, before, params))
        opt.zero_grad()
        opt.param_groups[0]["momentum"] = 0.9
        train(params, opt, comm, 2, first=2)
        return [p.detach().clone() for p in params]

    expected = make_model()
    optimizer = torch.optim.SGD(expected, lr=0.1)
    reference(None, 2, 2, expected, optimizer)
    optimizer.param_groups[0]["momentum"] = 0.9
    reference(None, 2, 2, expected, optimizer, first=2)
    for params in run_threads(2, rank_main):
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)


@BOTH
@pytest.mark.parametrize("then", ["go on", "release", "resume"])
@pytest.mark.parametrize("kind", ["momentum", "mixed", "adam"])
def test_parameters_that_begin_to_train_later_have_state_too(options, then, kind):
    """Gradual unfreezing: their state is in `opt.state`, in checkpoints, and where parameters are given back; also beside a group without any."""

    def make(groups):
        if kind == "adam":
            return torch.optim.Adam(groups, lr=0.1)
        groups[0]["momentum"] = 0.0 if kind == "mixed" else 0.5
        return torch.optim.SGD(groups, lr=1.0, momentum=0.5)

    def go(wrap_it):
        head, back, third = (torch.nn.Parameter(torch.zeros(4, dtype=torch.float64)) for _ in range(3))
        back.requires_grad_(False)
        build = lambda: wrap_it(make([{"params": [head]}, {"params": [back]}, {"params": [third]}]))  # noqa: E731
        opt = build()
        is_ours = hasattr(opt, "comm")
        for step in range(6):
            if step == 2:
                back.requires_grad_(True)
            if step == 4 and then == "release" and is_ours:
                opt.release()
            if step == 4 and then == "resume":
                saved = copy.deepcopy(opt.state_dict())
                head, back, third = (torch.nn.Parameter(p.detach().clone()) for p in (head, back, third))
                opt = build()
                opt.load_state_dict(saved)
            loss = 0.1 * sum(((p + sign * step) ** 2).sum() for p, sign in ((head, -1), (back, 1), (third, 2)) if p.requires_grad)
            if is_ours:
                opt.backward(Weighted(loss, 1))
            else:
                loss.backward()
            opt.step()
            opt.zero_grad()
        held = sorted(number for number, state in opt.state_dict()["state"].items() if any(v is not None for v in state.values()))
        return [p[0].item() for p in (head, back, third)], held

    expected, held = go(lambda optimizer: optimizer)
    for values, theirs in run_threads(2, lambda comm: go(lambda optimizer: wrap(optimizer, comm, **options))):
        assert values == pytest.approx(expected, abs=1e-12) and theirs == held
