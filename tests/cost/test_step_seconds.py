"""Seconds of a step from a few measured ones: recovered exactly, not bent by a busy machine, and no slow batch hidden."""

import pytest

from hvd_trainer.cost.step_seconds import StepPoint, fit_step_seconds
from tests.properties import given, st


@given(st.floats(1e-4, 1e-1), st.floats(1e-6, 1e-3), st.floats(0, 1e-1), st.floats(0, 1e-2))
def test_seconds_of_a_step_are_recovered(fixed_s, sample_s, ring_s, rank_s):
    def true(ranks, batch):
        return fixed_s + sample_s * batch / ranks + ring_s * 2 * (ranks - 1) / ranks + rank_s * (ranks - 1)

    found = fit_step_seconds([StepPoint(ranks, batch, true(ranks, batch)) for ranks in (1, 2, 4) for batch in (64, 256, 1024)])
    assert found.median_error < 1e-6
    assert found(8, 512) == pytest.approx(true(8, 512), rel=1e-4) and found(2, 300) == pytest.approx(true(2, 300), rel=1e-5)


def points(*of):
    return [StepPoint(*each) for each in of]


def test_seconds_of_a_step_from_too_little():
    assert fit_step_seconds(points((1, 32, 0.1), (1, 64, 0.2))) is None
    assert fit_step_seconds(points((1, 32, 0.1), (1, 32, 0.1), (2, 64, 0.2))) is None
    falling = fit_step_seconds(points((1, 32, 0.3), (1, 64, 0.2), (1, 128, 0.1)))
    assert falling.own[1].sample_s == 0.0 and falling.all_ranks.ring_s == 0.0 and falling.median_error > 0.1


BATCHES = (16, 32, 64, 128, 256, 512, 1024)


def true_s(ranks, batch):
    return 1e-3 + 1e-5 * batch / ranks + (5e-4 if ranks > 1 else 0.0)


def measured(slow=(), by=1.0, spread=0.03, ranks=(1, 2)):
    return [StepPoint(n, b, true_s(n, b) * (by if (n, b) in slow else 1.0), None if spread is None else spread * true_s(n, b)) for n in ranks for b in BATCHES]


def test_ranks_that_were_not_measured_are_predicted_from_those_that_were():
    found = fit_step_seconds([*measured(ranks=(2,)), StepPoint(1, 64, true_s(1, 64))])
    assert found(1, 512) == pytest.approx(true_s(1, 512), rel=0.01) and found.is_extrapolated(1, 512)
    assert not found.is_extrapolated(2, 512) and not found.is_extrapolated(2, 2048) and found.is_extrapolated(2, 2100)


def test_a_run_on_a_busy_machine_bends_nothing():
    found = fit_step_seconds(measured(slow={(2, 128)}, by=2.8, spread=None))
    assert [found(2, batch) for batch in BATCHES] == pytest.approx([true_s(2, batch) for batch in BATCHES], rel=0.02) and found.off == {}


def test_a_batch_that_is_slow_by_more_than_its_spread_counts_as_it_was_measured():
    found = fit_step_seconds(measured(slow={(2, 128)}, by=1.6))
    assert set(found.off) == {(2, 128)} and found(2, 128) == pytest.approx(1.6 * true_s(2, 128))
    assert true_s(2, 180) * 1.1 < found(2, 180) < 1.5 * true_s(2, 180)  # what lies beside it is not known to be fast
    assert [found(2, batch) for batch in (64, 256)] == pytest.approx([true_s(2, batch) for batch in (64, 256)], rel=0.02)
    assert found(1, 128) == pytest.approx(true_s(1, 128), rel=0.02)


def test_within_its_spread_the_fit_counts():
    found = fit_step_seconds(measured(slow={(2, 128)}, by=1.6, spread=0.7))
    assert found.off == {} and found(2, 128) == pytest.approx(true_s(2, 128), rel=0.02)


def test_runs_of_one_batch_say_together_how_far_it_scatters():
    slow = measured(spread=None) + [StepPoint(1, 128, 2.00 * true_s(1, 128)), StepPoint(1, 128, 2.02 * true_s(1, 128))]
    alike = [point for point in slow if (point.ranks, point.global_batch, point.step_s) != (1, 128, true_s(1, 128))]
    assert fit_step_seconds(alike)(1, 128) == pytest.approx(2.0 * true_s(1, 128), rel=0.01)
    assert fit_step_seconds(slow)(1, 128) == pytest.approx(true_s(1, 128), rel=0.01)  # its fastest run is as the fit says


def test_a_knee_is_found_where_there_is_one():
    def true(batch):
        return 1e-3 + 1e-5 * batch + 2e-5 * max(0, batch - 128)

    found = fit_step_seconds([StepPoint(1, batch, true(batch)) for batch in BATCHES])
    assert found.own[1].knee == 128 and found(1, 700) == pytest.approx(true(700), rel=1e-4)
    assert fit_step_seconds(measured()).own[2].knee == 0
