"""The one place where a rate is made: reference x schedule x scale x warm-up."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.train.learning_rate import LearningRate
from tests.properties import given, st


def make(schedule=None, scale=4.0, rate=0.1, total_steps=40):
    plain = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))]}], lr=rate)
    opt = ht.DistributedOptimizer(plain, SingleCommunicator(), lr_scaling=scale)
    return LearningRate(opt, schedule, steps_per_epoch=4, total_steps=total_steps)


@given(st.floats(1.0, 64.0), st.floats(0, 20), st.integers(0, 60))
def test_product(scale, warm, step):
    lr = make(lambda step: 0.9**step, scale)
    lr.set_warmup(warm, None)
    lr.apply(step)
    ramp = 1.0 if step >= warm else 1 / scale + step / warm * (1 - 1 / scale)
    assert lr.current() == pytest.approx([0.1 * 0.9**step * scale * ramp])
    assert lr.current()[0] <= 0.1 * 0.9**step * scale * (1 + 1e-12)


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 50))
def test_a_function_of_the_step_alone(before, step):
    """Whatever was asked before: nothing is multiplied onto the current rate."""
    lr, fresh = make(ht.schedules.cosine()), make(ht.schedules.cosine())
    for each in (lr, fresh):
        each.set_warmup(7.5, None)
    for number in [*before, step]:
        lr.apply(number)
    fresh.apply(step)
    assert lr.current() == fresh.current()


def test_a_longer_run():
    lr = make(ht.schedules.linear())
    lr.set_warmup(4, None)
    lr.apply(22)
    assert lr.current() == pytest.approx([0.2])
    lr.set_length(76)
    lr.apply(40)
    assert lr.current() == pytest.approx([0.2])
    assert lr.timeline.warmup_steps == 4


def test_rates_that_cannot_be():
    with pytest.raises(ConfigError, match="learning rate -0.4"):
        make(lambda step: -1.0).apply(0)
