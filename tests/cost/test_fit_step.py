"""The step's parts found again from times that known parts would give, and held-out sizes predicted."""

import numpy as np
import pytest

from hvd_trainer.cost.fit_step import fit_compute, fit_overlap
from hvd_trainer.cost.samples import GRADIENT, LOCAL, STEP, StepSample
from hvd_trainer.cost.step_time import Compute, StepTime
from hvd_trainer.errors import ConfigError
from tests.properties import given, settings, st

SIZES = (8, 16, 32, 64)


def local_samples(model, sizes=SIZES, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)

    def sample(kind, m, seconds):
        return StepSample(kind, m, 1, 1, 1, tuple(seconds * np.exp(noise * rng.standard_normal(5))))

    return [
        sample(kind, m, model.compute.seconds(m) if kind == GRADIENT else model.seconds(m)) for m in sizes for kind in (GRADIENT, LOCAL)
    ]


@settings(max_examples=8)
@given(st.floats(1e-4, 1e-1), st.floats(1e-6, 1e-2), st.floats(1e-5, 1e-2))
def test_held_out_sizes_within_ten_percent(fixed, slope, update):
    true = StepTime(Compute(fixed, slope), update)
    found = fit_compute(local_samples(true, noise=0.03), num_draws=0)
    errors = [abs(found.model.seconds(m) / true.seconds(m) - 1) for m in (12, 24, 48, 96)]
    assert np.median(errors) < 0.1


def test_a_knee_is_found_only_where_there_is_one():
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    straight = fit_compute(local_samples(StepTime(Compute(0.01, 0.001)), sizes, noise=0.01), num_draws=0)
    assert straight.model.compute.knee == 0
    bent = StepTime(Compute(0.002, 0.001, knee=16, beyond_s=0.002))
    found = fit_compute(local_samples(bent, sizes, noise=0.01), num_draws=2)
    assert found.model.compute.knee == 16
    assert found.model.seconds(256) == pytest.approx(bent.seconds(256), rel=0.1)
    assert len(found.draws) == 2 and found.draws[0].compute.knee == 16


def test_without_whole_steps_the_update_is_nothing():
    samples = [s for s in local_samples(StepTime(Compute(0.01, 0.001), 0.005)) if s.kind == GRADIENT]
    assert fit_compute(samples, num_draws=0).model.update_s < 1e-6


def test_one_size_is_refused():
    with pytest.raises(ConfigError, match="at least two sizes"):
        fit_compute(local_samples(StepTime(Compute(0.01, 0.001)), sizes=(8,)))


@pytest.mark.parametrize("gamma", [1.0, 4.0])
def test_overlap_is_told_from_its_absence(gamma):
    true = StepTime(Compute(0.01, 0.001), 0.002, gamma)
    local = fit_compute(local_samples(true), num_draws=3)
    places = [(1, 2), (2, 1), (4, 1)]
    sync = {(1, 2): 0.01, (2, 1): 0.04, (4, 1): 0.09}
    steps = [StepSample(STEP, m, 1, *p, (true.seconds(m, 1, sync[p]),)) for p in places for m in SIZES]
    found = fit_overlap(local, steps, lambda n, r: sync[n, r], num_draws=3)
    for m in (12, 48):
        for seconds in (0.02, 0.2):
            assert found.model.seconds(m, 1, seconds) == pytest.approx(true.seconds(m, 1, seconds), rel=0.1)
    assert (found.model.gamma < 1.3) == (gamma == 1.0)


def test_messages_that_cost_more_within_a_step():
    true = StepTime(Compute(0.01, 0.001), 0.002, sync_factor=1.5)
    local = fit_compute(local_samples(true), num_draws=0)
    steps = [StepSample(STEP, m, 1, 2, 1, (true.seconds(m, 1, 0.2),)) for m in SIZES]
    found = fit_overlap(local, steps, lambda n, r: 0.2, num_draws=0)
    assert found.model.seconds(32, 1, 0.4) == pytest.approx(true.seconds(32, 1, 0.4), rel=0.1)


def test_without_steps_nothing_is_hidden():
    local = fit_compute(local_samples(StepTime(Compute(0.01, 0.001), 0.002)), num_draws=2)
    assert fit_overlap(local, [], lambda n, r: 0.1) is local


def test_draws_of_the_messages_widen_the_interval():
    local = fit_compute(local_samples(StepTime(Compute(0.01, 0.001), 0.002)), num_draws=20)
    sure, unsure = local.step(32, 1, [0.1]), local.step(32, 1, [0.1, *np.linspace(0.05, 0.2, 20)])
    assert unsure.high > 1.3 * sure.high and unsure.value == sure.value
