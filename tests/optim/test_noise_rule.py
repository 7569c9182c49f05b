"""The noise rule, and what rules say where they are not to be trusted."""

import math

import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.scaling import Fixed, Linear, Sqrt, checked_factor, range_warning
from tests.properties import given, st
from tests.vectors import vector

HYPERBOLA = vector("hyperbola")
SGD, ADAM = {"momentum": 0.9}, {"betas": (0.9, 0.999)}


def test_rates_of_the_hyperbola():
    """eta(B) / eta(largest) = (1 + Bn / B_max) / (1 + Bn / B)."""
    batches, rates = HYPERBOLA.inputs["B"], HYPERBOLA.expected["eta_opt_over_eta_max"]
    rule = ht.NoiseRule(HYPERBOLA.expected["B_crit"])
    for batch, rate in zip(batches, rates):
        assert checked_factor(rule, int(batch), 4096) * rates[-1] == pytest.approx(rate, rel=1e-12)


@given(st.floats(1e-3, 1e6), st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from(["sgd", "adam", "surge"]))
def test_up_and_down_again_is_one(noise, a, b, kind):
    rule = ht.NoiseRule(noise, kind=kind)
    assert rule.factor(a, b) * rule.factor(b, a) == pytest.approx(1.0)
    if kind != "surge":
        assert (rule.factor(a, b) >= 1) == (a >= b)


def test_kinds():
    assert ht.NoiseRule(math.inf).factor(256, 64) == 4.0 and ht.NoiseRule(0).factor(256, 64) == 1.0
    assert ht.NoiseRule(math.inf, kind="adam").factor(256, 64) == 2.0
    surge = ht.NoiseRule(256, kind="surge")
    rates = [surge.factor(batch, 256) for batch in (16, 64, 256, 1024, 4096)]
    assert rates == pytest.approx(rates[::-1]) and max(rates) == rates[2] == 1.0  # highest at the noise scale
    assert rates[0] == pytest.approx(2 / (4 + 1 / 4))


def test_another_noise_scale_is_another_recipe():
    assert ht.NoiseRule(200).name == "noise(200, sgd)" != ht.NoiseRule(100).name
    assert ht.NoiseRule(200) == ht.NoiseRule(200)


@pytest.mark.parametrize("arguments", [(-1,), (math.nan,), (0, "surge"), (math.inf, "surge"), (100, "Adam")], ids=str)
def test_what_cannot_be(arguments):
    with pytest.raises(ConfigError, match="NoiseRule"):
        ht.NoiseRule(*arguments)


@pytest.mark.parametrize(
    ("rule", "global_batch", "defaults", "says"),
    [
        (Linear(), 2048, SGD, ""),
        (Linear(), 2049, SGD, "published up to 32"),
        (Linear(), 128, ADAM, "of an Adam-like optimizer"),
        (Linear(), 64, ADAM, ""),
        (Linear(noise_scale=200), 128, SGD, ""),
        (Linear(noise_scale=200), 8192, SGD, r"linear scaling by 128 to batch 8192, which is 41 times(?s:.)*ht.NoiseRule\(200\)"),
        (Linear(noise_scale=200), 32, SGD, ""),  # downwards
        (Sqrt(), 4096, ADAM, ""),
        (Sqrt(), 4097, ADAM, "published up to 64"),
        (Sqrt(noise_scale=200), 1024, ADAM, r"sqrt scaling by 4 (?s:.)*ht.NoiseRule\(200, kind='adam'\)"),
        (Fixed(3.0), 1024, ADAM, ""),
        (ht.NoiseRule(200), 128, SGD, ""),
        (ht.NoiseRule(200), 1024, SGD, "raises the rate by 3.45"),
        (ht.NoiseRule(200), 16, SGD, ""),
        (ht.NoiseRule(200), 128, ADAM, 'kind="adam" is the one'),
        (ht.NoiseRule(200, kind="adam"), 128, SGD, 'kind="sgd" is the one'),
        (ht.AdamSde(), 128, SGD, "no betas"),
        (ht.AdamSde(), 128, ADAM, ""),
    ],
    ids=str,
)
def test_warnings(rule, global_batch, defaults, says):
    """Reference batch 64."""
    found = range_warning(rule, global_batch, 64, defaults)
    if says:
        import re

        assert re.search(says, found)
    else:
        assert found == ""


def test_a_rule_of_the_user_has_no_range():
    class Own:
        name = "own"

        def factor(self, global_batch, reference_batch):
            return 1.0

    assert range_warning(Own(), 10**6, 1, SGD) == ""
