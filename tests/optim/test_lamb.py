"""LAMB against its formula in numpy, and against torch's Adam and AdamW where the ratio is out of the way."""

import copy
import math

import numpy as np
import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.properties import given, st


def by_formula(weight, grads, rates, betas=(0.9, 0.999), eps=1e-6, decay=0.01, phi=(0.0, math.inf), correct=True, adapt=True):
    """The paper's algorithm 2, written down once more with numpy."""
    w, m, v = np.array(weight), 0.0, 0.0
    for t, (g, lr) in enumerate(zip(grads, rates), 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        first, second = ((1 - betas[0] ** t), (1 - betas[1] ** t)) if correct else (1.0, 1.0)
        u = (m / first) / (np.sqrt(v / second) + eps) + (decay * w if adapt else 0.0)
        norm_w, norm_u = np.linalg.norm(w), np.linalg.norm(u)
        ratio = np.clip(norm_w, *phi) / norm_u if adapt and norm_w > 0 and norm_u > 0 else 1.0
        w = w - lr * ratio * u
    return w


def train(weight, grads, rates, resumed_at=None, **options):
    param = torch.nn.Parameter(torch.tensor(weight))
    opt = ht.LAMB([param], **options)
    for step, (grad, lr) in enumerate(zip(grads, rates)):
        if step == resumed_at:
            state = copy.deepcopy(opt.state_dict())
            opt = ht.LAMB([param], lr=9.0)
            opt.load_state_dict(state)
        opt.param_groups[0]["lr"] = lr
        param.grad = torch.tensor(grad)
        opt.step()
    return param.detach().numpy()


RATES = [0.1, 0.3, 0.05, 0.2]


def problem(shape, seed):
    generator = np.random.default_rng(seed)
    return generator.normal(size=shape), generator.normal(size=(len(RATES), *shape))


@given(
    st.integers(0, 2**20),
    st.sampled_from([{}, {"weight_decay": 0.0}, {"bias_correction": False}, {"phi": (0.0, 0.5)}, {"phi": (4.0, 10.0)}, {"betas": (0.0, 0.5), "eps": 1e-3}]),
    st.sampled_from([None, 1, 3]),
)
def test_four_steps(seed, options, resumed_at):
    weight, grads = problem((3, 2), seed)
    names = {"weight_decay": "decay", "bias_correction": "correct"}
    expected = by_formula(weight, grads, RATES, **{names.get(name, name): value for name, value in options.items()})
    np.testing.assert_allclose(train(weight, grads, RATES, resumed_at, **options), expected, rtol=1e-11)


def test_a_bias_is_adam_without_decay():
    weight, grads = problem((5,), 1)
    mine = train(weight, grads, RATES, weight_decay=0.3)
    np.testing.assert_allclose(mine, by_formula(weight, grads, RATES, adapt=False), rtol=1e-11)
    param = torch.nn.Parameter(torch.tensor(weight))
    adam = torch.optim.Adam([param], eps=1e-6)
    for grad, lr in zip(grads, RATES):
        adam.param_groups[0]["lr"], param.grad = lr, torch.tensor(grad)
        adam.step()
    np.testing.assert_allclose(mine, param.detach().numpy(), rtol=1e-11)


def test_zero_weights_take_the_plain_step_and_a_layer_without_gradient_only_decays():
    zero = train(np.zeros((2, 2)), np.ones((1, 2, 2)), [0.1], weight_decay=0.01)
    np.testing.assert_allclose(zero, -0.1, rtol=1e-5)  # ratio 1, r = 1
    rest = train(np.ones((2, 2)), np.zeros((1, 2, 2)), [0.1], weight_decay=0.01)
    np.testing.assert_allclose(rest, 0.9, rtol=1e-12)  # u = wd w has the direction of w: a step of lr |w|
    still = train(np.ones((2, 2)), np.zeros((1, 2, 2)), [0.1], weight_decay=0.0)
    np.testing.assert_allclose(still, 1.0, rtol=0)


def test_parameters_that_get_no_gradient_keep_their_own_count():
    used, rare = (torch.nn.Parameter(torch.ones(1, 2, dtype=torch.float64)) for _ in range(2))
    opt = ht.LAMB([used, rare], lr=0.1)
    for step in range(3):
        used.grad = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
        rare.grad = torch.tensor([[1.0, -2.0]], dtype=torch.float64) if step == 2 else None
        opt.step()
    np.testing.assert_allclose(rare.detach().numpy(), by_formula(np.ones((1, 2)), [np.array([[1.0, -2.0]])], [0.1]), rtol=1e-12)
    assert [float(opt.state[param]["step"]) for param in (used, rare)] == [3.0, 1.0]


@pytest.mark.parametrize("options", [{"lr": -1}, {"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"eps": -1e-9}, {"weight_decay": -1}, {"phi": (10, 0)}, {"phi": (1,)}, {"adapt": 2}], ids=str)
def test_options_that_cannot_be(options):
    with pytest.raises(ConfigError):
        ht.LAMB([torch.nn.Parameter(torch.zeros(1))], **options)
