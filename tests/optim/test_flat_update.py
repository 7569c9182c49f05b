"""Updates in flat buffers, whole and in shards, against the optimizer's own step; and when they end."""

import copy
import gc

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError, LossError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads

SHARDS = {"reduce_through": "shared", "update_by": "shards"}
FLAT = {"reduce_through": "messages"}
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True),
    "momentum_foreach": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    "adamw_tensor_lr": lambda groups: torch.optim.AdamW(groups, lr=torch.tensor(0.01)),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.1),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5),
    "adamax": lambda groups: torch.optim.Adamax(groups, lr=0.01),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
    "radam": lambda groups: torch.optim.RAdam(groups, lr=0.01),
    "adadelta": lambda groups: torch.optim.Adadelta(groups),
    "rprop": lambda groups: torch.optim.Rprop(groups),
}


def make_model():
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 5), (5,), (40,), (3, 4, 2, 2)]
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    # As in convolutions with channels_last: dense, in another order.
    params[3].data = params[3].data.contiguous(memory_format=torch.channels_last)
    return params


def groups_of(params):
    return [{"params": params[:2]}, {"params": params[2:], "lr": 0.003}]


def loss_of(params, step, rank=0):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return sum((p * torch.randn(p.shape, generator=generator, dtype=p.dtype)).sum() + p.square().sum() for p in params)


def train(params, optimizer, comm, steps, first=0):
    for step in range(first, first + steps):
        optimizer.backward(Weighted(loss_of(params, step, comm.rank), 1))
        optimizer.step()
        optimizer.zero_grad()


def reference(make, num_ranks, steps, params=None, optimizer=None, first=0):
    params = params or make_model()
    optimizer = optimizer or make(groups_of(params))
    for step in range(first, first + steps):
        optimizer.zero_grad()
        (sum(loss_of(params, step, rank) for rank in range(num_ranks)) / num_ranks).backward()
        optimizer.step()
    return params, optimizer


def wrap(optimizer, comm, **options):
    return DistributedOptimizer(optimizer, comm, **{"lr_scaling": "none", **options})


def assert_same_state(found, expected):
    assert found["state"].keys() == expected["state"].keys()
    for index, state in expected["state"].items():
        for key, value in state.items():
            torch.testing.assert_close(torch.as_tensor(found["state"][index][key]), torch.as_tensor(value), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [SHARDS, FLAT], ids=["shards", "flat"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_parameters_and_the_same_ordinary_state(name, options):
    """Also from a state that was loaded in the middle, by any number of ranks and by a plain optimizer."""
    make = OPTIMIZERS[name]
    expected, plain = reference(make, 3, 3)

    def rank_main(comm):
        params = make_model()
        opt = wrap(make(groups_of(params)), comm, **options)
        train(params, opt, comm, 3)
        assert opt._updater.flat is not None
        return [p.detach().clone() for p in params], opt.state_dict(), params[3].is_contiguous(memory_format=torch.channels_last)

    for params, state, kept_layout in run_threads(3, rank_main):
        assert kept_layout
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)
        assert_same_state(state, plain.state_dict())
    saved = copy.deepcopy({key: value for key, value in state.items() if key != "hvd_trainer"})
    resumed, their_optimizer = [torch.nn.Parameter(p.clone()) for p in params], None
    their_optimizer = make(groups_of(resumed))
    their_optimizer.load_state_dict(saved)  # into a plain optimizer
    reference(make, 3, 2, resumed, their_optimizer, first=3)

    def go_on(comm):  # one sample less of a rank: what matters is that all ranks take up the state alike
        mine = [torch.nn.Parameter(p.clone()) for p in params]
        opt = wrap(make(groups_of(mine)), comm, **options)
        opt.load_state_dict(copy.deepcopy(state))
        train(mine, opt, comm, 2, first=3)
        return [p.detach().clone() for p in mine]

    for found in run_threads(3, go_on):
        torch.testing.assert_close(found, [p.detach() for p in resumed], rtol=1e-9, atol=1e-12)
    on_two = run_threads(2, go_on)
    assert all(torch.equal(a, b) for a, b in zip(*on_two))


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_more_ranks_than_elements(num_ranks):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.ones(1))
        opt = wrap(torch.optim.AdamW([w], lr=0.1), comm, **SHARDS)
        for _ in range(2):
            opt.backward(Weighted((w * 2).sum(), 1))
            opt.step()
            opt.zero_grad()
        return w.item(), opt.state_dict()["state"][0]["step"].item()

    plain = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([plain], lr=0.1)
    for _ in range(2):
        plain.grad = torch.full((1,), 2.0)
        optimizer.step()
    assert run_threads(num_ranks, rank_main) == [(pytest.approx(plain.item()), 2.0)] * num_ranks


def test_the_averaged_gradient_can_be_read_after_a_step_in_shards():
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(40))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, **SHARDS)
        opt.backward(Weighted((w * (comm.rank + 1.0)).sum(), 1))
        opt.step()
        return w.grad.tolist()

    assert run_threads(2, rank_main) == [[1.5] * 40] * 2


@pytest.mark.parametrize("clear", ["none", "zeros", "model_zeros"])
@pytest.mark.parametrize("plain", [True, False])
def test_ways_to_clear_gradients_that_ranks_share(clear, plain):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(40))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, **SHARDS)
        for _ in range(4):
            loss = (w * (comm.rank + 1.0)).sum()
            loss.backward() if plain else opt.backward(Weighted(loss, 1))
            opt.step()
            if clear == "model_zeros":
                w.grad.zero_()
            else:
                opt.zero_grad(set_to_none=clear == "none")
        return w.tolist()

    assert run_threads(2, rank_main) == [[-6.0] * 40] * 2


def write(param):
    param.data.mul_(0.5)


def write_in_torch(param):
    with torch.no_grad():
        param.mul_(0.5)


@pytest.mark.parametrize("change", [write, write_in_torch])
def test_parameters_that_ranks_share_must_not_be_written_by_each(change):
    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1), comm, **SHARDS)
        train(params, opt, comm, 1)
        for param in params:
            change(param)
        comm.barrier()
        with pytest.raises(LossError, match=r"memory that all ranks of the node share(.|\n)*update_by=\"tensors\""):
            train(params, opt, comm, 1)

    run_threads(2, rank_main)


def test_a_checkpoint_may_be_loaded_over_parameters_that_ranks_share():
    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **SHARDS)
        train(params, opt, comm, 1)
        saved, state = [p.detach().clone() for p in params], opt.state_dict()
        state = {**state, "state": {k: {n: v.clone() for n, v in s.items()} for k, s in state["state"].items()}}
        comm.barrier()
        train(params, opt, comm, 2, first=1)
        after = [p.detach().clone() for p in params]
        comm.barrier()
        with torch.no_grad():
            for param, before in zip(params, saved):
                param.copy_(before)
        opt.load_state_dict(state)
        comm.barrier()
        train(params, opt, comm, 2, first=1)
        return all(torch.equal(a, b) for a, b in zip(params, after))

    assert run_threads(2, rank_main) == [True, True]


def hook(opt, params, comm):
    if comm.rank == 1:  # one rank is enough: all end it in the same step
        opt.register_step_pre_hook(lambda *_: None)
    train(params, opt, comm, 1, first=1)


def synchronize(opt, params, comm):
    opt.backward(Weighted(loss_of(params, 1, comm.rank), 1))
    opt.synchronize()
    opt.step()
    opt.zero_grad()


def scaler(opt, params, comm):
    scale = GradScaler("cpu")
    opt.backward(Weighted(loss_of(params, 1, comm.rank), 1), scaler=scale)
    scale.step(opt)
    scale.update()
    opt.zero_grad()


def replace_memory(opt, params, comm):
    if comm.rank == 0:
        params[0].data = params[0].data.clone()
    train(params, opt, comm, 1, first=1)


@pytest.mark.parametrize("somebody", [hook, synchronize, scaler, replace_memory])
def test_shards_end_where_somebody_must_see_whole_gradients(somebody, capsys):
    make = OPTIMIZERS["momentum"]

    def rank_main(comm):
        params = make_model()
        opt = wrap(make(groups_of(params)), comm, **SHARDS)
        train(params, opt, comm, 1)
        somebody(opt, params, comm)
        train(params, opt, comm, 2, first=2)
        return [p.detach().clone() for p in params], opt.state_dict(), opt._updater.flat

    expected, plain = reference(make, 2, 4)
    for params, state, flat in run_threads(2, rank_main):
        assert flat is None
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)
        assert_same_state(state, plain.state_dict())
    assert "from step 2 on each rank updates all parameters" in capsys.readouterr().out


def test_a_parameter_without_gradient_ends_flat_updates_and_keeps_its_state():
    make = OPTIMIZERS["adamw"]

    def rank_main(comm, options):
        params = make_model()
        opt = wrap(make(groups_of(params)), comm, **options)
        train(params, opt, comm, 2)
        opt.backward(Weighted(loss_of(params[1:], 2, comm.rank), 1))
        opt.step()
        opt.zero_grad()
        return [p.detach().clone() for p in params], {k: s["step"].item() for k, s in opt.state_dict()["state"].items()}

    expected, optimizer = reference(make, 2, 2)
    optimizer.zero_grad()
    (sum(loss_of(expected[1:], 2, rank) for rank in range(2)) / 2).backward()
    optimizer.step()
    for options in (SHARDS, FLAT):
        for params, steps in run_threads(2, lambda comm, options=options: rank_main(comm, options)):
            torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)
            assert steps == {0: 2.0, 1: 3.0, 2: 3.0, 3: 3.0}


def test_gradients_replaced_after_synchronize_are_the_ones_that_count():
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(3))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, **FLAT)
        opt.backward(Weighted(w.sum(), 1))
        opt.synchronize()
        w.grad = w.grad * 2
        opt.step()
        return w.tolist()

    assert run_threads(2, rank_main) == [[-2.0] * 3] * 2


def test_memory_is_given_back_when_the_job_or_the_optimizer_ends():
    """What comes after (another optimizer, pruning, a last evaluation) must not write into what other ranks still read."""

    def rank_main(comm, end):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **SHARDS)
        train(params, opt, comm, 1)
        pointers = [p.data_ptr() for p in params]
        values = [p.detach().clone() for p in params]
        comm.barrier()
        if end == "close":
            comm.close()
        elif end == "wrap again":
            wrap(torch.optim.SGD(params, lr=0.1), comm, update_by="tensors", reduce_through="messages")
        else:
            del opt
            gc.collect()
        moved = all(p.data_ptr() != pointer for p, pointer in zip(params, pointers))
        return moved and all(torch.equal(p, value) for p, value in zip(params, values))

    for end in ("close", "wrap again", "delete"):
        assert run_threads(2, lambda comm, end=end: rank_main(comm, end)) == [True, True], end


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda w: torch.optim.ASGD([w]), "ASGD is not known to work element by element"),
        (lambda w: torch.optim.Adam([w], capturable=True), "capturable"),
    ],
)
def test_what_cannot_be_divided(make, words):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(4))
        with pytest.raises(ConfigError, match=words):
            wrap(make(w), comm, **SHARDS)
        return wrap(make(w), comm)._updater.flat

    assert run_threads(2, rank_main) == [None, None]


def test_shards_need_shared_memory():
    with pytest.raises(ConfigError, match='update_by="shards", but one rank'):
        wrap(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), SingleCommunicator(), update_by="shards")


def test_released_parameters_may_be_written_and_are_taken_again_by_the_next_step():
    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **SHARDS)
        train(params, opt, comm, 1)
        opt.release()
        for param in params:
            param.data.mul_(0.5)
        train(params, opt, comm, 1, first=1)
        return [p.detach().clone() for p in params], opt._updater.flat is not None

    expected, optimizer = reference(OPTIMIZERS["momentum"], 2, 0)
    optimizer = torch.optim.SGD(expected, lr=0.1, momentum=0.9)
    reference(None, 2, 1, expected, optimizer)
    for param in expected:
        param.data.mul_(0.5)
    reference(None, 2, 1, expected, optimizer, first=1)
    for params, is_flat in run_threads(2, rank_main):
        assert is_flat
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [SHARDS, FLAT], ids=["shards", "flat"])
def test_parameters_can_be_copied_and_saved_while_they_are_held(options, tmp_path):
    def rank_main(comm):
        params = make_model()
        opt = wrap(torch.optim.SGD(params, lr=0.1, momentum=0.9), comm, **options)
        train(params, opt, comm, 1)
        copied = copy.deepcopy(torch.nn.ParameterList(params))
        torch.save(params, tmp_path / f"{comm.rank}.pt")
        loaded = torch.load(tmp_path / f"{comm.rank}.pt", weights_only=False)
        values = [p.detach().clone() for p in params]
        comm.barrier()
        train(params, opt, comm, 1, first=1)
        return all(torch.equal(a, v) and torch.equal(b, v) for a, b, v in zip(copied, loaded, values))

    assert run_threads(2, rank_main) == [True, True]


def test_no_room_for_the_state_is_an_error_on_all_ranks(monkeypatch):
    """It was passed over: the state was then missing from state_dict."""

    def rank_main(comm):
        params = make_model()
        opt = wrap(OPTIMIZERS["adamw"](groups_of(params)), comm, **SHARDS)
        comm.barrier("made")
        monkeypatch.setattr("hvd_trainer.comm.node_memory.free_bytes", lambda: 100)
        with pytest.raises(ConfigError, match="the state of AdamW.*do not fit"):
            train(params, opt, comm, 1)
        return True

    assert run_threads(2, rank_main) == [True, True]
