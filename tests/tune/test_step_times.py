"""A trial that ran while the machine was busy must not decide."""

from dataclasses import replace

import pytest

from hvd_trainer.tune.finalists import best_of
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.step_times import slowness, with_fits
from hvd_trainer.tune.trial import CAP, DIVERGED, MET, Settings, TrialResult


def record(batch, steps, slower=1.0, outcome=MET, optimizer=None, **more):
    seconds = (1e-3 + 1e-5 * batch / 2) * slower
    result = TrialResult(outcome, steps=steps, step_s=seconds, start={"ranks": 2, "global_batch": batch}, **more)
    return Record("search", Settings(2, batch, 0.1, optimizer), result, 0.0)


TRIALS = [record(32, 900), record(64, 500), record(128, 330), record(512, 260), record(1024, 200, outcome=CAP)]


def test_a_disturbed_trial_counts_with_the_fit_and_others_with_their_own():
    disturbed = record(256, 200, slower=2.8)
    found = with_fits([*TRIALS, disturbed])
    assert [each.result.step_s for each in found] == [each.result.step_s for each in [*TRIALS, disturbed]]
    assert found[-1].result.to_target_s == pytest.approx(200 * (1e-3 + 1e-5 * 128), rel=0.15)
    for before, after in zip(TRIALS[:4], found):
        assert after.result.to_target_s == pytest.approx(before.result.to_target_s, rel=0.1)
    assert best_of([*TRIALS, disturbed], 2).settings.global_batch == 128 and best_of(found, 2).settings.global_batch == 256


def test_a_trial_that_missed_the_target_still_says_how_long_a_step_takes():
    assert with_fits([*TRIALS[:4], TRIALS[4]])[0].result.fitted_step_s is not None
    assert with_fits(TRIALS[:4])[0].result.fitted_step_s is None


def test_trials_that_diverged_do_not_make_the_fit():
    diverged = [replace(record(batch, 9, outcome=DIVERGED), result=replace(record(batch, 9).result, step_s=1e-3, outcome=DIVERGED)) for batch in (2048, 4096, 8192)]
    found = with_fits([*TRIALS, *diverged])
    assert found[4].result.fitted_step_s == pytest.approx(TRIALS[4].result.step_s, rel=0.15)


def test_points_measured_apart_count_for_the_optimizer_of_the_script():
    points = [{"ranks": 2, "global_batch": batch, "step_s": 1e-3 + 1e-5 * batch / 2} for batch in (16, 64, 256, 1024)]
    mine, other, alone = with_fits([record(512, 300), record(512, 300, optimizer="lamb"), record(512, 300, slower=3.0)], points)
    assert mine.result.fitted_step_s == pytest.approx(3.56e-3, rel=0.3)
    assert other.result.fitted_step_s is None
    assert alone.result.to_target_s < 0.6 * 300 * alone.result.step_s


def test_jobs_that_shared_the_machine_do_not_make_the_fit():
    shared = [record(batch, 300, slower=2.0, shared_by=2) for batch in (16, 48, 96, 768)]
    found = with_fits([*TRIALS, *shared])
    assert found[-1].result.to_target_s == pytest.approx(300 * (1e-3 + 1e-5 * 384), rel=0.15)


def test_jobs_beside_each_other_count_as_if_they_were_alone():
    """Else an optimizer that was only tried beside others would lose against the script's, which was measured alone."""
    shared = [record(batch, 300, slower=1.6, shared_by=2) for batch in (16, 48, 96, 768)]
    other = record(256, 300, slower=1.6, optimizer="lamb", shared_by=2)
    found = with_fits([*TRIALS, *shared, other])
    assert found[-1].result.to_target_s == pytest.approx(300 * (1e-3 + 1e-5 * 128), rel=0.15)
    assert slowness(found, 2) == pytest.approx(1.6, rel=0.1) and slowness(found[:5], 3) == 3.0 and slowness(found[:5], 1) == 1.0


def test_a_batch_that_is_slow_by_itself_is_not_hidden():
    """Its steps lie close together, or its runs with other seeds took as long: no other work on the machine does that."""
    slow_s = (1e-3 + 1e-5 * 128) * 1.8
    steady = record(256, 200, slower=1.8, end={"spread_s": 0.05 * slow_s})
    ragged = record(256, 200, slower=1.8, end={"spread_s": 1.2 * slow_s})
    again = [record(256, 200, slower=1.8), record(256, 200, slower=1.83)]
    for hidden, extra in ((False, [steady]), (False, again), (True, [ragged])):
        seconds = with_fits([*TRIALS, *extra])[5].result.to_target_s
        assert seconds == pytest.approx(200 * (slow_s / 1.8 if hidden else slow_s), rel=0.1)


def test_a_single_step_is_no_measurement():
    """The first one allocates: a trial that was capped there does not say how long a step takes."""
    once = [record(batch, 1, slower=20.0, outcome=CAP) for batch in (2048, 2000, 1900, 1800, 1700)]
    assert with_fits([*TRIALS, *once])[4].result.fitted_step_s == pytest.approx(TRIALS[4].result.step_s, rel=0.05)
