"""Ways to choose the global batch, against brute force and against closed forms."""

import math

import pytest

from hvd_trainer.cost.policies import (
    EXTRAPOLATED,
    FIXED_GLOBAL,
    FIXED_PER_RANK,
    MEASURED,
    PREDICTED,
    RECOMMENDED,
    Point,
    Task,
    linear_excess,
    worth_it,
)
from hvd_trainer.cost.steps_to_target import Hyperbola
from hvd_trainer.errors import ConfigError
from tests.properties import given, st

CURVE = Hyperbola(150.0, 250.0)


def step_s(ranks, batch):
    return 0.002 + 2e-5 * batch / ranks + (0.003 if ranks > 1 else 0.0)


TASK = Task(CURVE.steps, step_s, 4096, 2, {(2, 256): (290, 2.5)})


@given(st.floats(1, 1e4), st.floats(1e-5, 1e-1), st.floats(1e-7, 1e-3), st.integers(1, 32))
def test_the_best_batch_is_the_closed_form(critical, fixed_s, sample_s, ranks):
    task = Task(Hyperbola(100.0, critical).steps, lambda n, batch: fixed_s + sample_s * batch / n, 10_000, 1)
    found, exact = task.best_batch(ranks), math.sqrt(critical * ranks * fixed_s / sample_s)
    assert found % ranks == 0 and ranks <= found <= 10_000

    def seconds(batch):
        return task.steps(batch) * task.step_s(ranks, batch)

    assert seconds(found) <= 1.0005 * min(seconds(batch) for batch in range(ranks, 10_001, ranks))
    if 30 * ranks < exact < 9000:
        assert found == pytest.approx(exact, rel=0.05)


def test_a_knee_does_not_hide_the_best():
    """A second valley, right of a step in the time: a search downhill from either end would miss it."""
    task = Task(Hyperbola(100.0, 1e6).steps, lambda n, batch: 1.0 if batch < 100 else 30.0, 4000, 1)
    best = min(range(1, 4001), key=lambda batch: task.steps(batch) * task.step_s(1, batch))
    assert task.best_batch(1) == best == 4000
    with pytest.raises(ConfigError, match="one sample a rank"):
        Task(CURVE.steps, step_s, 3, 1).best_batch(4)


def test_three_policies_and_their_labels():
    curves = TASK.policies([1, 2, 4, 8], 128)
    assert [point.global_batch for point in curves[FIXED_GLOBAL]] == [128] * 4
    assert [point.global_batch for point in curves[FIXED_PER_RANK]] == [128, 256, 512, 1024]
    assert [point.label for point in curves[FIXED_PER_RANK]] == [PREDICTED, MEASURED, PREDICTED, EXTRAPOLATED]
    assert curves[FIXED_PER_RANK][1] == Point(2, 256, 290, 2.5, MEASURED)
    for name in (FIXED_GLOBAL, FIXED_PER_RANK):  # nothing predicted is faster than the recommended batch
        for other, best in zip(curves[name], curves[RECOMMENDED]):
            assert other.label == MEASURED or best.seconds <= other.seconds * 1.0001
    assert [point.ranks for point in TASK.policies([1, 8], 4)[FIXED_GLOBAL]] == [1]


def test_ranks_that_are_worth_it():
    points = TASK.policies([1, 2, 4, 8, 16, 32, 64], 128)[RECOMMENDED]
    found = worth_it(points, 1.2)
    following = next(point for point in points if point.ranks == 2 * found.ranks)
    assert found.seconds / following.seconds < 1.2
    # Three for one is 1.58 doublings: 1.5 for each are 1.9.
    assert worth_it([Point(1, 8, 1, 10.0, PREDICTED), Point(3, 8, 1, 5.2, PREDICTED)]).ranks == 3
    assert worth_it([Point(3, 8, 1, 5.4, PREDICTED), Point(1, 8, 1, 10.0, PREDICTED)]).ranks == 1
    with pytest.raises(ConfigError):
        worth_it([])


def test_what_the_linear_rule_asks_too_much():
    assert linear_excess(64, 64, 100.0) == 1.0
    assert linear_excess(128, 64, 1e9) == pytest.approx(1.0, rel=1e-6)  # all noise: the linear rule is right
    assert linear_excess(128, 64, 0.0) == 2.0  # no noise: the rate stays
