"""Measurements on file: what goes in comes out, and what is none is refused."""

import pytest

from hvd_trainer.cost.samples import Measurements, MessageSample, StepSample, merged
from hvd_trainer.errors import ConfigError
from tests.properties import given, st

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=5).map(tuple)
MESSAGES = st.builds(MessageSample, st.sampled_from(["allreduce", "send"]), st.just((8, 64)), st.integers(1, 9), st.integers(1, 9), TIMES)
STEPS = st.builds(StepSample, st.just("step"), st.integers(1, 99), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), TIMES)


def one(**changes):
    return Measurements(**{"workload": "mlp", "engine": "mpi", "backend": "mpi", "buckets": (64, 8), **changes})


@given(st.lists(MESSAGES, max_size=3), st.lists(STEPS, max_size=3))
def test_json_and_back(messages, steps):
    there = one(messages=tuple(messages), steps=tuple(steps), about=({"ranks": 2},))
    assert Measurements.from_json(there.as_json()) == there


def test_a_record_that_holds_measurements(tmp_path):
    path = tmp_path / "record.json"
    path.write_text('{"kind": "predict", "measurements": ' + one().as_json() + "}")
    assert Measurements.read(path) == one()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1}', '{"measurements": 3}'])
def test_something_else_is_refused(text):
    with pytest.raises(ConfigError, match="a.json holds no measurements"):
        Measurements.from_json(text, "a.json")


@pytest.mark.parametrize("seconds", [(), (0.0,), (1.0, float("nan")), (float("inf"),)])
def test_times_that_cannot_be_fitted(seconds):
    with pytest.raises(ConfigError, match="all > 0"):
        MessageSample("allreduce", (8,), 1, 2, seconds)


def test_several_launches_are_put_together():
    first = one(messages=(MessageSample("allreduce", (8,), 1, 2, (1.0,)),), about=({"ranks": 2},))
    alone = one(engine="single", backend="none", steps=(StepSample("gradient", 8, 1, 1, 1, (1.0,)),))
    both = merged([alone, first])
    assert (both.engine, len(both.messages), len(both.steps), both.about) == ("mpi", 1, 1, ({"ranks": 2},))
    with pytest.raises(ConfigError, match="engine mpi and torch"):
        merged([one(), one(engine="torch")])
    with pytest.raises(ConfigError, match="--from-json"):
        merged([])


def test_repetitions_of_the_same_thing_are_pooled():
    def launch(seconds):
        return one(messages=(MessageSample("allreduce", (8,), 1, 2, seconds), MessageSample("allreduce", (8, 8), 1, 2, (3.0,))))

    both = merged([launch((1.0, 2.0)), launch((4.0,))])
    assert [(s.sizes, s.seconds) for s in both.messages] == [((8,), (1.0, 2.0, 4.0)), ((8, 8), (3.0, 3.0))]
