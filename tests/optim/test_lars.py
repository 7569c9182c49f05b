"""LARS against the vectors, three steps with a rate that jumps; and what published versions got wrong."""

import copy

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError, LossError
from tests.fake_comm import run_threads
from tests.vectors import vector

LARS_VECTOR = vector("lars")
OPTIONS = {name: LARS_VECTOR.inputs[name] for name in ("momentum", "weight_decay", "eta", "eps")}
NAMES = {"W": "grad_W", "bias": "grad_bias", "zero_layer": "grad_zero_layer"}


def start(**options):
    params = {name: torch.nn.Parameter(torch.tensor(LARS_VECTOR.inputs[name], dtype=torch.float64)) for name in NAMES}
    return params, ht.LARS(params.values(), lr=1.0, **{**OPTIONS, **options})


def give_gradients(params, step):
    for name, key in NAMES.items():
        params[name].grad = torch.tensor(LARS_VECTOR.inputs[key][step], dtype=torch.float64)


def close(value, expected):
    torch.testing.assert_close(value.detach(), torch.tensor(expected, dtype=torch.float64), rtol=LARS_VECTOR.rtol, atol=0)


@pytest.mark.parametrize(("form", "expected"), [("paper", "paper"), ("torch", "buffer_without_lr")])
@pytest.mark.parametrize("resumed_at", [None, 1, 2])
def test_three_steps(form, expected, resumed_at):
    """Weight, excluded bias and a layer that starts at zero; also through a state_dict in a new optimizer."""
    params, opt = start(form=form)
    for step, lr in enumerate(LARS_VECTOR.inputs["lr"]):
        if step == resumed_at:
            state = copy.deepcopy(opt.state_dict())
            opt = ht.LARS(params.values(), lr=7.0, adapt=True)
            opt.load_state_dict(state)
        opt.param_groups[0]["lr"] = lr
        give_gradients(params, step)
        opt.step()
        for name in NAMES:
            close(params[name], LARS_VECTOR.expected[expected][step][name])


@pytest.mark.parametrize("lr", LARS_VECTOR.expected["larc_clip_multiplier_tc0p02_eps1e8"])
def test_larc_multiplier(lr):
    params, _ = start()
    give_gradients(params, 0)
    before = params["W"].detach().clone()
    opt = ht.LARS([params["W"]], lr=float(lr), momentum=0.0, weight_decay=OPTIONS["weight_decay"], eta=0.02, eps=1e-8, clip=True)
    opt.step()
    direction = params["W"].grad + OPTIONS["weight_decay"] * before
    multiplier = ((before - params["W"].detach()) / (float(lr) * direction)).mean().item()
    assert multiplier == pytest.approx(LARS_VECTOR.expected["larc_clip_multiplier_tc0p02_eps1e8"][lr], rel=1e-9)


def one_step(weight, grad, **options):
    param = torch.nn.Parameter(torch.tensor(weight, dtype=torch.float64))
    param.grad = torch.tensor(grad, dtype=torch.float64)
    opt = ht.LARS([param], **{"lr": 1.0, "momentum": 0.0, "weight_decay": 0.0, "eta": 0.1, **options})
    opt.step()
    return param.detach().tolist()


def test_without_weight_decay_the_ratio_stays():
    assert one_step([[3.0, 4.0]], [[0.0, 50.0]]) == [[3.0, pytest.approx(3.5)]]


def test_zero_norms_take_the_plain_rate():
    assert one_step([[0.0, 0.0]], [[1.0, 2.0]]) == [[-1.0, -2.0]]
    assert one_step([[1.0, 2.0]], [[0.0, 0.0]]) == [[1.0, 2.0]]


def test_gradients_below_the_range_of_the_norm_do_not_blow_up():
    param = torch.nn.Parameter(torch.full((1, 2), 1e30))
    param.grad = torch.full((1, 2), 1e-38)
    ht.LARS([param], lr=1.0, weight_decay=0.0).step()
    assert param.isfinite().all()


def test_biases_have_neither_ratio_nor_decay():
    assert one_step([3.0, 4.0], [0.0, 1.0], weight_decay=0.5) == [3.0, 3.0]
    assert one_step([3.0, 4.0], [0.0, 50.0], adapt=True) == [3.0, pytest.approx(3.5)]
    assert one_step([[3.0, 4.0]], [[0.0, 1.0]], weight_decay=0.5, adapt=False) == [[3.0, 3.0]]


def test_momentum_zero_keeps_no_state():
    param = torch.nn.Parameter(torch.ones(1, 2))
    opt = ht.LARS([param], lr=0.1, momentum=0.0)
    param.grad = torch.ones(1, 2)
    opt.step()
    assert not opt.state


def test_half_precision_norms_do_not_overflow():
    """|g| is 10^6, above the largest float16."""
    param = torch.nn.Parameter(torch.ones(10_000, 1, dtype=torch.float16))
    param.grad = torch.full_like(param, 1e4)
    ht.LARS([param], lr=1.0, momentum=0.0, weight_decay=0.0, eta=0.1).step()
    torch.testing.assert_close(param.detach().float(), torch.full((10_000, 1), 0.9), rtol=2e-3, atol=0)


@pytest.mark.parametrize("make", [lambda params: ht.LARS(params, lr=0.5), lambda params: ht.LAMB(params, lr=0.5)], ids=["LARS", "LAMB"])
@pytest.mark.parametrize("cuts", [[(0, 7), (7, 12), (12, 12)], [(0, 0), (0, 12), (12, 12)]], ids=str)
def test_parts_of_tensors_with_summed_squares_are_the_whole(make, cuts):
    """What a sharded update does: each rank holds flat parts, some empty, and sums the squared norms over ranks."""
    generator = torch.Generator().manual_seed(0)
    whole, grads = (torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(2))

    def two_steps(begin, end, sum_squares):
        opt = make([torch.nn.Parameter(tensor.clone()) for tensor in whole])
        if sum_squares is not None:  # the exclusions were decided from the whole tensors
            opt.param_groups[0]["params"] = [torch.nn.Parameter(tensor.flatten()[begin:end].clone()) for tensor in whole]
        opt.sum_squares = sum_squares
        for _ in range(2):
            for param, grad in zip(opt.param_groups[0]["params"], grads):
                param.grad = grad.flatten()[begin:end].view_as(param)
            opt.step()
        return torch.stack([param.detach().flatten() for param in opt.param_groups[0]["params"]])

    def on_rank(comm):
        return two_steps(*cuts[comm.rank], lambda squares: comm.allreduce_(squares, "norms").wait())

    joined = torch.cat(run_threads(3, on_rank), dim=1)
    torch.testing.assert_close(joined, two_steps(0, 12, None), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    "options",
    [{"lr": -1}, {"lr": float("nan")}, {"momentum": 1.0}, {"weight_decay": -1}, {"eta": 0}, {"eps": -1}, {"adapt": "all"}, {"form": "apex"}],
    ids=str,
)
def test_options_that_cannot_be(options):
    with pytest.raises(ConfigError):
        ht.LARS([torch.nn.Parameter(torch.zeros(1))], **{"lr": 0.1, **options})


def test_sparse_and_complex_are_refused():
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(LossError, match="sparse"):
        ht.LARS(table.parameters(), lr=0.1).step()
    param = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    param.grad = torch.ones_like(param)
    with pytest.raises(LossError, match="complex"):
        ht.LARS([param], lr=0.1).step()


def test_a_tensor_as_rate_and_a_closure():
    param = torch.nn.Parameter(torch.ones(1, 4))
    opt = ht.LARS([param], lr=torch.tensor(1.0), momentum=0.0, weight_decay=0.0, eta=0.1)

    def closure():
        opt.zero_grad()
        loss = (param * 5).sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 20.0
    torch.testing.assert_close(param.detach(), torch.full((1, 4), 0.9))
