"""Factors, and rates that are multiplied once."""

import math
from fractions import Fraction

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.scaling import checked_factor, scale_lr, scaling_rule
from tests.properties import given, st

# vectors/warmup_linear: Goyal et al. 2017, 0.1 for 256.
IMAGENET = {256: 0.1, 512: 0.2, 1024: 0.4, 2048: 0.8, 4096: 1.6, 8192: 3.2, 16384: 6.4, 32768: 12.8, 65536: 25.6}


@pytest.mark.parametrize("batch", IMAGENET)
def test_imagenet_rates(batch):
    assert scale_lr(0.1, global_batch=batch, reference_batch=256) == pytest.approx(IMAGENET[batch], rel=1e-12)


@pytest.mark.parametrize(
    ("rule", "factors"),  # vectors/scaling_rules, lr 0.1
    [("linear", {2: 0.2, 4: 0.4, 32: 3.2}), ("sqrt", {2: 0.14142135623730953, 4: 0.2, 32: 0.5656854249492381}), ("none", {2: 0.1, 32: 0.1})],
)
def test_rule_vectors(rule, factors):
    for k, expected in factors.items():
        assert scale_lr(0.1, global_batch=64 * k, reference_batch=64, rule=rule) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("k", "lr"), [(0.25, 0.0005), (0.5, 0.0007071067811865476), (1, 0.001), (2, 0.0014142135623730952), (16, 0.004)])
def test_adam_vectors(k, lr):
    assert scale_lr(0.001, global_batch=int(64 * k), reference_batch=64, rule="sqrt") == pytest.approx(lr, rel=1e-12)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(["linear", "sqrt"]))
def test_up_and_down_again_is_one(a, b, rule):
    up = checked_factor(scaling_rule(rule), a, b)
    assert up * checked_factor(scaling_rule(rule), b, a) == pytest.approx(1.0)
    assert (up > 1) == (a > b)


def test_fractional_reference():
    """64 samples on 3 ranks: the reference is 64/3 and the factor exactly 3."""
    plan = ht.BatchPlan(64, 3)
    assert plan.reference == Fraction(64, 3)
    assert checked_factor(scaling_rule("linear"), 64, plan.reference) == 3.0


def test_a_number_or_an_object_is_a_rule():
    class Noise:
        name = "noise"

        def factor(self, global_batch, reference_batch):
            return (1 + 100 / reference_batch) / (1 + 100 / global_batch)

    assert scale_lr(0.1, global_batch=512, reference_batch=64, rule=2.5) == 0.25
    assert scale_lr(0.1, global_batch=512, reference_batch=64, rule=Noise()) == pytest.approx(0.1 * (1 + 100 / 64) / (1 + 100 / 512))
    assert isinstance(Noise(), ht.ScalingRule)


@pytest.mark.parametrize("rule", ["Linear", "", None, 0, -1, math.nan, math.inf, True, object(), dict], ids=lambda rule: repr(rule).split(" at ")[0])
def test_rules_that_cannot_be(rule):
    with pytest.raises(ConfigError, match="lr_scaling="):
        scaling_rule(rule)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_factors_that_cannot_be(value):
    class Broken:
        name = "broken"

        def factor(self, global_batch, reference_batch):
            return value

    with pytest.raises(ConfigError, match="scaling rule 'broken' gave the factor"):
        checked_factor(Broken(), 2, 1)


@pytest.mark.parametrize("arguments", [{"lr": -0.1}, {"lr": math.nan}, {"global_batch": 0}, {"reference_batch": 0}, {"global_batch": math.nan}])
def test_arguments_that_cannot_be(arguments):
    with pytest.raises(ConfigError):
        scale_lr(**{"lr": 0.1, "global_batch": 8, "reference_batch": 8, **arguments})


def test_rule_object_on_the_optimizer():
    """Without a plan the batch counts in rank batches; with one in samples."""
    from hvd_trainer.comm.single import SingleCommunicator

    class Seen:
        name = "seen"

        def factor(self, global_batch, reference_batch):
            self.arguments = (global_batch, reference_batch)
            return 3.0

    rule = Seen()
    w = torch.nn.Parameter(torch.zeros(1))
    opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), SingleCommunicator(), lr_scaling=rule, plan=ht.BatchPlan(64, 1, reference_batch=16))
    assert rule.arguments == (64, 16)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.3)
    assert opt.lr_scale == 3.0
