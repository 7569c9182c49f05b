"""The hyperbola through runs against its vector, and what must hold for any."""

import math

import numpy as np
import pytest

from hvd_trainer.cost.fit_hyperbola import compare, fit_hyperbola
from hvd_trainer.cost.steps_to_target import Hyperbola, from_noise
from hvd_trainer.errors import ConfigError
from tests.properties import given, st
from tests.vectors import vector

DATA = vector("hyperbola")
BATCHES = DATA.inputs["B"]
numbers = st.floats(1.0, 1e5)


@pytest.mark.parametrize(("steps", "name"), [(DATA.expected["S"], "fit_clean"), (DATA.inputs["noisy_steps"], "fit_noisy")])
def test_fits_of_the_vector(steps, name):
    found, expected = fit_hyperbola(BATCHES, steps), DATA.expected[name]
    assert found.curve.smallest_steps == pytest.approx(expected["Smin"], rel=DATA.rtol)
    assert found.critical_batch == pytest.approx(expected["B_crit"], rel=DATA.rtol)
    assert found.low < DATA.expected["B_crit"] < found.high and not found.reason
    fitted = [found.steps(batch) for batch in BATCHES]
    assert found.worst == pytest.approx(compare(steps, fitted).worst)


@given(numbers, st.floats(2.0, 5e3))
def test_exact_curves_are_recovered(smallest, critical):
    curve = Hyperbola(smallest, critical)
    batches = [4, 16, 64, 256, 1024, 4096, 16384]
    found = fit_hyperbola(batches, [curve.steps(batch) for batch in batches])
    assert found.critical_batch == pytest.approx(critical, rel=1e-8)
    assert found.curve.smallest_steps == pytest.approx(smallest, rel=1e-8)
    assert found.low < critical < found.high < 2 * critical and found.low > critical / 2 and found.worst < 1 + 1e-9


@given(numbers, numbers, st.permutations(range(len(BATCHES))))
def test_the_units_and_the_order_do_not_matter(by_batch, by_steps, order):
    noisy = DATA.inputs["noisy_steps"]
    here = fit_hyperbola(BATCHES, noisy)
    there = fit_hyperbola([by_batch * BATCHES[i] for i in order], [by_steps * noisy[i] for i in order])
    assert there.critical_batch == pytest.approx(by_batch * here.critical_batch, rel=1e-8)
    assert there.curve.smallest_steps == pytest.approx(by_steps * here.curve.smallest_steps, rel=1e-8)
    assert (there.low, there.high) == pytest.approx((by_batch * here.low, by_batch * here.high), rel=1e-6)
    assert there.interval(by_batch * 100) == pytest.approx([by_steps * end for end in here.interval(100)], rel=1e-6)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    curve, batches = Hyperbola(150.0, 250.0), [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    held = held_steps = 0
    for _ in range(200):
        steps = [curve.steps(batch) * math.exp(0.1 * rng.standard_normal()) for batch in batches]
        found = fit_hyperbola(batches, steps)
        low, high = found.interval(100)
        held += found.low <= 250.0 <= found.high
        held_steps += low <= curve.steps(100) <= high
    assert 180 <= held <= 199 and 180 <= held_steps <= 199  # 190 are expected, 3.1 is the standard deviation


@pytest.mark.parametrize(
    ("critical", "words", "low_is_open", "high_is_open"), [(1e7, "far below", False, True), (1e-3, "far above", True, False)]
)
def test_undetermined_where_all_batches_lie_on_one_side(critical, words, low_is_open, high_is_open):
    curve = Hyperbola(100.0, critical)
    found = fit_hyperbola([16, 32, 64, 128], [curve.steps(batch) for batch in (16, 32, 64, 128)])
    assert words in found.reason and "undetermined" in str(found)
    assert (found.low == 0.0) == low_is_open and math.isinf(found.high) == high_is_open
    low, high = found.interval(64)  # what was measured is known all the same
    assert low < curve.steps(64) < high < 1.2 * low


def test_steps_that_say_nothing_at_all():
    found = fit_hyperbola([16, 32, 64, 128], [100, 3000, 80, 2000])
    assert found.low == 0.0 and math.isinf(found.high) and "scatter" in found.reason
    assert "a third one" in fit_hyperbola([16, 64], [100, 50]).reason and fit_hyperbola([16, 64], [100, 50]).interval(16) is None


def test_weights_count_like_repeated_points():
    steps = DATA.inputs["noisy_steps"]
    weighted = fit_hyperbola(BATCHES, steps, [3.0] + [1.0] * (len(BATCHES) - 1))
    repeated = fit_hyperbola(BATCHES[:1] * 2 + BATCHES, steps[:1] * 2 + steps)
    assert weighted.critical_batch == pytest.approx(repeated.critical_batch, rel=1e-8)
    assert weighted.critical_batch != pytest.approx(fit_hyperbola(BATCHES, steps).critical_batch, rel=1e-3)


@pytest.mark.parametrize("arguments", [([16], [100]), ([16, 16], [100, 90]), ([16, 64], [100, 0.0]), ([16, 64], [100, math.inf]), ([16, 64], [100])])
def test_what_cannot_be_fitted_is_refused(arguments):
    with pytest.raises(ConfigError):
        fit_hyperbola(*arguments)


def test_the_pilot_is_predicted_from_one_run():
    """Steps to loss 0.42 of an MLP on Fashion-MNIST, and the noise scale of one run at 256 (plain SGD, numpy)."""
    steps = {8: 4387, 16: 2320, 32: 1293, 64: 707, 128: 403, 256: 278, 512: 186, 1024: 183, 2048: 150, 4096: 162}
    found = fit_hyperbola(list(steps), list(steps.values()))
    assert found.worst < 1.3 and 190 < found.low < found.critical_batch < found.high < 320
    predicted = from_noise(256, steps[256], 193.5)
    others = [batch for batch in steps if batch != 256]
    result = compare([predicted.steps(batch) for batch in others], [steps[batch] for batch in others])
    assert result.worst < 1.25 and result.geometric_mean < 1.15


def test_comparisons():
    assert compare([2.0, 1.0], [1.0, 2.0]).factors == (2.0, 0.5)
    assert (compare([2.0, 1.0], [1.0, 2.0]).worst, compare([3.0], [3.0]).geometric_mean) == (2.0, 1.0)
    with pytest.raises(ConfigError):
        compare([1.0], [])
