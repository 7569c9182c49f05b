"""Fits in relative error: what a disturbed measurement and a missing one do to them."""

import numpy as np
import pytest

from hvd_trainer.cost.robust import Estimate, Prior, estimate, fit

X = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
LINE = (Prior(1.0, 5.0, 1e-3, 1e3), Prior(1.0, 5.0, 1e-3, 1e3))


def line(theta):
    return theta[0] + theta[1] * X


def test_exact_data_are_recovered_with_a_narrow_interval():
    found = fit(line, 3.0 + 0.5 * X, LINE, num_draws=10)
    assert found.theta == pytest.approx([3.0, 0.5], rel=2e-2)
    assert found.scatter < 1e-2
    assert np.ptp(found.draws, axis=0) == pytest.approx([0, 0], abs=0.2)


def test_one_disturbed_measurement_of_six_hardly_matters():
    measured = 3.0 + 0.5 * X
    measured[3] *= 10
    found = fit(line, measured, LINE, num_draws=0)
    assert line(found.theta) == pytest.approx(3.0 + 0.5 * X, rel=0.12)


def test_a_parameter_that_the_data_do_not_show_varies_as_the_prior_does():
    priors = (Prior(1.0, 5.0, 1e-3, 1e3), Prior(1.5, 0.3, 1.0, 2.0))
    found = fit(lambda theta: theta[0] * X, 2.0 * X, priors, num_draws=40)
    assert found.theta[0] == pytest.approx(2.0, rel=1e-2)
    assert 0.1 < found.draws[:, 1].std() < 0.4


def test_the_same_data_give_the_same_draws():
    noisy = (3.0 + 0.5 * X) * np.array([1.05, 0.95, 1.02, 0.97, 1.1, 0.9])
    first, second = (fit(line, noisy, LINE, num_draws=5) for _ in range(2))
    assert np.array_equal(first.draws, second.draws)


def test_the_interval_covers_a_held_out_point_as_often_as_it_says():
    """Twenty noisy data sets, 8 % noise: the interval at x = 64 must hold the truth in most of them, and not be endless."""
    rng = np.random.default_rng(1)
    covered, widths = 0, []
    for seed in range(20):
        measured = (3.0 + 0.5 * X) * np.exp(0.08 * rng.standard_normal(len(X)))
        found = fit(line, measured, LINE, num_draws=10, seed=seed)
        guess = estimate(found.theta @ [1, 64], [draw @ [1, 64] for draw in found.draws], found.scatter)
        covered += guess.low <= 35.0 <= guess.high
        widths.append(guess.high / guess.low)
    assert covered >= 16
    assert np.median(widths) < 2.0


def test_the_value_lies_in_its_interval_also_without_draws():
    assert estimate(2.0, [], 0.3) == Estimate(2.0, 2.0, 2.0)
    far = estimate(2.0, [5.0, 6.0, 7.0], 0.1)
    assert far.low == 2.0 < far.high
