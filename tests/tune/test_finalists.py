"""The best of many trials is lucky: the median over seeds decides."""

import math

import pytest

from hvd_trainer.tune.finalists import SEED, as_rows, best_of, candidates, median_s, repetitions, worth_of_ranks
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.trial import CAP, MET, Settings, TrialResult


def record(batch, seconds, seed=None, ranks=2):
    """A trial of 100 steps; infinite seconds: it ended at a cap."""
    result = TrialResult(CAP, steps=100, step_s=0.1) if math.isinf(seconds) else TrialResult(MET, steps=100, step_s=seconds / 100)
    return Record("search" if seed is None else SEED, Settings(ranks, batch, 0.1, seed=seed), result, 0.0)


FIRST = [record(64, 3.0), record(128, 2.0), record(256, 4.0), record(512, 5.0), record(1024, math.inf)]


def test_without_other_seeds_the_soonest_trial_is_the_best():
    assert best_of(FIRST, 2).settings.global_batch == 128 and best_of(FIRST, 1) is None
    assert [each.settings.global_batch for each in candidates(FIRST, 2)] == [128, 64, 256]


def test_the_median_over_seeds_decides_between_those_that_were_repeated():
    again = [*FIRST, record(128, 9.0, 1), record(128, 8.0, 2), record(64, 3.5, 1), record(64, 2.5, 2)]
    best = best_of(again, 2)
    assert best.settings.global_batch == 64 and best.settings.seed is None
    rows = as_rows(again, [2])
    assert [(row["global_batch"], row["median_s"]) for row in rows] == [(None, pytest.approx(3.0)), (None, pytest.approx(8.0))]
    assert rows[0]["seeds"] == [None, 1, 2]


def test_settings_that_most_seeds_miss_the_target_with_are_not_the_best():
    again = [*FIRST, record(128, math.inf, 1), record(128, math.inf, 2), record(64, 30.0, 1), record(64, 30.0, 2)]
    assert best_of(again, 2).settings.global_batch == 64
    assert as_rows(again, [2])[-1]["median_s"] is None


def test_what_is_repeated_is_one_seed_after_the_other_and_the_same_after_an_interruption():
    wanted = repetitions(FIRST, 2, seed=5)
    assert [(each.global_batch, each.seed) for each in wanted] == [(128, 6), (64, 6), (256, 6), (128, 7), (64, 7), (256, 7)]
    left = repetitions([*FIRST, record(128, 9.0, 6), record(64, 9.0, 6)], 2, seed=5)
    assert sorted((each.global_batch, each.seed) for each in left) == [(64, 7), (128, 7), (256, 6), (256, 7)]


def test_what_ranks_are_worth():
    rows = worth_of_ranks([*FIRST, record(64, 3.0, ranks=1)], [1, 2, 4])
    assert [row["speed_up"] for row in rows] == [1.0, pytest.approx(1.5), None]
    assert rows[1]["efficiency"] == pytest.approx(0.75) and rows[2]["seconds"] is None
    assert [row["trials"] for row in rows] == [1, 1, 0] and rows[1]["caution"] == "one trial each, no spread known" and "caution" not in rows[0]
    rows = worth_of_ranks([record(64, 4.2, ranks=1), record(64, 4.2, 1, ranks=1), record(64, 2.0), record(64, 2.0, 1)], [1, 2])
    assert rows[1]["caution"].startswith("more than 2 times on 2 times the ranks")
    assert median_s([record(64, 1.0), record(64, math.inf, 1)]) == math.inf
