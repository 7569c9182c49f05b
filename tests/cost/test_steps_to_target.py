"""The hyperbola against its vector, and what must hold for any."""

import math

import numpy as np
import pytest

from hvd_trainer.cost.steps_to_target import Hyperbola, from_noise, from_noise_curve
from hvd_trainer.errors import ConfigError
from tests.properties import given, st
from tests.vectors import vector

DATA = vector("hyperbola")
BATCHES = DATA.inputs["B"]
numbers = st.floats(1.0, 1e5)


def test_steps_and_samples_of_the_vector():
    curve = Hyperbola(DATA.inputs["Smin"], DATA.inputs["Emin"] / DATA.inputs["Smin"])
    assert curve.critical_batch == DATA.expected["B_crit"] and curve.smallest_samples == DATA.inputs["Emin"]
    assert [curve.steps(batch) for batch in BATCHES] == pytest.approx(DATA.expected["S"], rel=DATA.rtol)
    assert [curve.samples(batch) for batch in BATCHES] == pytest.approx(DATA.expected["E"], rel=DATA.rtol)
    overhead = DATA.expected["overhead_20pct_batch"]
    assert curve.samples(overhead) == pytest.approx(1.2 * curve.smallest_samples, rel=DATA.rtol)


@given(numbers, numbers, st.floats(0.0, 1e5))
def test_one_run_and_its_noise_give_the_curve(batch, steps, noise):
    found = from_noise(batch, steps, noise)
    assert found.steps(batch) == pytest.approx(steps) and found.critical_batch == noise and found.interval(batch) is None
    constant = from_noise_curve(batch, [(steps / 3, noise), (steps / 2, noise), (steps, noise)])
    assert constant.critical_batch == pytest.approx(noise, rel=1e-6, abs=1e-6 * batch)
    assert constant.curve.smallest_steps == pytest.approx(found.curve.smallest_steps)


@given(st.lists(st.tuples(st.floats(1.0, 100.0), st.floats(0.0, 1e4)), min_size=1, max_size=8), numbers)
def test_a_noise_curve_goes_through_its_run(parts, batch):
    at = np.cumsum([length for length, _ in parts])
    found = from_noise_curve(batch, [(step, noise) for step, (_, noise) in zip(at, parts)])
    assert found.steps(batch) == pytest.approx(at[-1])
    noises = [noise for _, noise in parts]
    slack = 1e-6 * (batch + max(noises))
    assert min(noises) - slack <= found.critical_batch <= max(noises) + slack


def test_the_clock_weighs_by_what_a_step_is_worth():
    # Noise 0 for 100 steps, then equal to the batch for 100: worth 1 and 1/2 each.
    found = from_noise_curve(64, [(0, 0.0), (100, 0.0), (100, 64.0), (200, 64.0)])
    assert found.curve.smallest_steps == pytest.approx(150) and found.critical_batch == pytest.approx(64 * 50 / 150)
    cut = from_noise_curve(64, [(50, 64.0), (100, None), (150, math.nan), (900, 1e9)], steps=200, low=32.0, high=128.0)
    assert cut.curve == Hyperbola(100.0, 64.0)
    assert cut.interval(64) == pytest.approx((200, 200)) and cut.interval(32) == pytest.approx((800 / 3, 1000 / 3))
    with pytest.raises(ConfigError, match="none of them determined"):
        from_noise_curve(64, [(100, None)])
