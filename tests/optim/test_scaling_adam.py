"""Adam's settings against the vectors, and written into param groups once."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.scaling_adam import (
    adam_sde,
    apply_group_settings,
    beta_same_half_life,
    half_life_samples,
    legw_warmup_epochs,
    weight_decay_same_timescale,
)
from tests.properties import given, st
from tests.vectors import vector

VECTOR = vector("scaling_rules")
BASE = [VECTOR.inputs[name] for name in ("lr", "beta1", "beta2", "eps")]


@pytest.mark.parametrize("k", VECTOR.expected["adam_sde"])
def test_sde(k):
    expected, found = VECTOR.expected["adam_sde"][k], adam_sde(*BASE, float(k))
    for name in ("lr", "beta1", "beta2", "eps"):
        assert getattr(found, name) == pytest.approx(expected[name], rel=VECTOR.rtol)
    assert found.is_valid == expected["valid"]


@pytest.mark.parametrize("k", VECTOR.expected["beta2_fixed_half_life"])
def test_half_life(k):
    expected = VECTOR.expected["beta2_fixed_half_life"][k]
    beta2 = beta_same_half_life(BASE[2], float(k))
    assert beta2 == pytest.approx(expected["beta2"], rel=VECTOR.rtol)
    assert half_life_samples(beta2, 32 * float(k)) == pytest.approx(expected["half_life_samples_B32"], rel=VECTOR.rtol)


def test_weight_decay_and_warmup():
    for k, expected in VECTOR.expected["weight_decay_fixed_timescale"].items():
        assert weight_decay_same_timescale(0.01, float(k)) == pytest.approx(expected, rel=VECTOR.rtol)
    for k, expected in VECTOR.expected["legw_warmup_epochs"].items():
        assert legw_warmup_epochs(0.5, float(k)) == pytest.approx(expected, rel=VECTOR.rtol)


@given(st.floats(0.1, 5.0), st.floats(0.1, 5.0))
def test_scaling_twice_is_scaling_by_the_product(a, b):
    once, first = adam_sde(*BASE, a * b), adam_sde(*BASE, a)
    twice = adam_sde(first.lr, first.beta1, first.beta2, first.eps, b)
    assert vars(twice) == pytest.approx(vars(once), rel=1e-9, abs=1e-12)


def wrapped(rule, ratio=4, optimizer=torch.optim.AdamW):
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": params[:1]}, {"params": params[1:], **({"betas": (0.8, 0.99)} if optimizer is torch.optim.AdamW else {})}]
    plan = ht.BatchPlan(int(64 * ratio), 1, reference_batch=64)
    opt = ht.DistributedOptimizer(optimizer(groups, lr=0.001), SingleCommunicator(), lr_scaling=rule, plan=plan)
    apply_group_settings(opt.param_groups, rule, plan.global_batch, plan.reference)
    return opt


def test_every_group_is_scaled_once():
    opt = wrapped(ht.AdamSde())
    for _ in range(2):
        first, second = opt.param_groups
        assert first["lr"] == pytest.approx(0.002) and first["eps"] == pytest.approx(5e-9)
        assert first["betas"] == pytest.approx((0.6, 0.996)) and second["betas"] == pytest.approx((0.2, 0.96))
        apply_group_settings(opt.param_groups, ht.AdamSde(), 256, 64)
        opt.load_state_dict(opt.state_dict())


def test_a_batch_beyond_its_range_is_refused():
    with pytest.raises(ConfigError, match=r"beta1 = -0.4(?s:.)*at most 5 times"):  # 1 - 7 (1 - 0.8)
        wrapped(ht.AdamSde(), ratio=7)


def test_other_optimizers_and_rules_keep_their_settings():
    assert "betas" not in wrapped(ht.AdamSde(), optimizer=torch.optim.SGD).param_groups[0]
    opt = wrapped(ht.NoiseRule(100, kind="adam"))
    assert opt.param_groups[0]["betas"] == (0.9, 0.999) and "scaled_settings" not in opt.param_groups[0]
