"""Whose turn it is: with made-up durations, from the first trial to the last second of a budget."""

import math

import pytest

from hvd_trainer.tune.turns import DONE, FIRST, PREDICTION, ROWS, SAMPLES, Standing, fair_s, next_turn

START_S = 4.5


def simulate(budget_s, trial_s, num_rows=5):
    """A whole search: [(ranks, stage)] of its turns, and what each number of ranks spent beyond its first two trials."""
    plan = {ranks: [FIRST, PREDICTION, *[ROWS] * num_rows] for ranks in trial_s}
    spent, left_s, turns = dict.fromkeys(trial_s, 0.0), budget_s, []
    while True:
        standings = [Standing(ranks, plan[ranks][0] if plan[ranks] else SAMPLES, spent[ranks], START_S + (0 if plan[ranks] else trial_s[ranks])) for ranks in trial_s]
        turn = next_turn(standings, left_s)
        if turn is None:
            return turns, spent, left_s
        took_s = min(START_S + trial_s[turn.ranks], turn.room_s)
        if turn.stage in (ROWS, SAMPLES):
            spent[turn.ranks] += took_s
        if plan[turn.ranks]:
            plan[turn.ranks].pop(0)
        left_s -= took_s
        turns.append((turn.ranks, turn.stage))


def test_on_a_small_budget_every_number_of_ranks_gets_its_first_trials_before_any_gets_more():
    turns, spent, _ = simulate(60.0, {2: 2.0, 1: 4.0})
    assert turns[:4] == [(2, FIRST), (1, FIRST), (2, PREDICTION), (1, PREDICTION)]
    assert [ranks for ranks, stage in turns[4:6]] == [2, 1] and abs(spent[2] - spent[1]) < START_S + 4.0


@pytest.mark.parametrize(("budget_s", "trial_s"), [(300.0, {2: 2.0, 1: 4.0}), (900.0, {4: 1.0, 2: 2.0, 1: 30.0}), (200.0, {2: 20.0, 1: 1.0})])
def test_what_remains_is_divided_to_within_a_trial(budget_s, trial_s):
    turns, spent, left_s = simulate(budget_s, trial_s)
    assert max(spent.values()) - min(spent.values()) <= START_S + max(trial_s.values())
    assert left_s < START_S + max(trial_s.values()) and [stage for _, stage in turns] == sorted(stage for _, stage in turns)


def test_time_that_one_cannot_use_is_the_others():
    done = Standing(2, DONE, 3.0)
    assert next_turn([done, Standing(1, SAMPLES, 90.0, 5.0)], 20.0).room_s == 20.0
    assert next_turn([Standing(2, ROWS, 0.0, 50.0), Standing(1, SAMPLES, 90.0, 5.0)], 20.0).ranks == 1
    assert next_turn([done], 1000.0) is None


def test_fair_parts_add_up_to_what_is_left():
    spent = [0.0, 5.0, 7.0, 100.0]
    parts = [fair_s(spent[i], spent[:i] + spent[i + 1 :], 30.0) for i in range(4)]
    assert math.isclose(sum(parts), 30.0) and parts == [14.0, 9.0, 7.0, 0.0]
