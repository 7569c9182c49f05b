"""What is fitted, predicted, and said to be missing."""

import copy

import pytest

from hvd_trainer.cost.policies import EXTRAPOLATED, MEASURED, RECOMMENDED
from hvd_trainer.report.curves import best_of_each_batch, curves, off_by
from hvd_trainer.report.facts import Facts
from tests.report.made_up import CURVE, report, step_s, trial


def test_everything_is_found_again():
    facts = Facts.of(report())
    found = curves(facts)
    assert found.optimizer == "sgd" and not found.fit.reason and found.fit.low < CURVE.critical_batch < found.fit.high
    assert found.predicted.critical_batch == pytest.approx(195) and found.predicted.interval(32)[0] < found.predicted.steps(32)
    assert found.step_seconds(2, 256) == pytest.approx(step_s(2, 256), rel=0.05)
    assert found.noise.value == 195 and len(found.noise.curve) == 35 and "worst" in off_by(found)
    policies = found.policies(facts)
    assert [point.ranks for point in policies[RECOMMENDED]] == [1, 2, 4, 8, 16]
    labels = {point.ranks: point.label for point in policies["fixed global batch"]}
    assert labels[2] == MEASURED and labels[8] == EXTRAPOLATED


def test_steps_are_of_the_best_rate_and_one_optimizer():
    facts = Facts.of(report())
    found = curves(facts)
    assert all(point.optimizer == "sgd" for point in found.points)
    trials = [trial("search", ranks, batch, 0.1, 0, steps=steps) for ranks, batch, steps in ((1, 100, 50), (2, 104, 40), (1, 400, 20))]
    assert [point.steps for point in best_of_each_batch(Facts.of({"trials": trials}).trials)] == [40, 20]


def test_without_phases_there_are_still_a_fit_and_times():
    found = curves(Facts.of(report(with_phases=False)))
    assert found.fit is not None and found.predicted is None and "not measured" in found.why_no_prediction
    assert found.task is not None and found.noise is None and off_by(found) == ""


def test_two_batches_give_no_fit_and_the_noise_scale_predicts():
    content = report()
    content["trials"] = [t for t in content["trials"] if t["result"]["start"]["global_batch"] in (128, 512)]
    del content["phases"]["prediction"]
    found = curves(Facts.of(content))
    assert found.fit is None and "2 batches" in found.why_no_fit
    assert found.predicted.critical_batch == 195 and found.best_known is found.predicted
    content["phases"]["noise"]["noise_scale"] = None
    nothing = curves(Facts.of(content))
    assert nothing.best_known is None and "undetermined" in nothing.why_no_prediction and "undetermined" in nothing.why_no_time


def test_no_trial_at_all():
    found = curves(Facts.of({}))
    assert found.points == () and found.task is None and found.policies(Facts.of({})) == {}


def test_a_noise_scale_of_a_trial_will_do():
    content = copy.deepcopy(report(with_phases=False))
    content["trials"][0]["result"]["noise_scale"] = 200.0
    found = curves(Facts.of(content))
    assert found.noise.value == 200.0 and found.noise.curve == () and found.predicted.critical_batch == 200.0
