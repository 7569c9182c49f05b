"""The one place where a rate is made: reference x schedule x scale x warm-up."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.train.learning_rate import LearningRate, schedule_for
from tests.properties import given, st
from tests.train.small import SCHEDULERS, loss_fn, make_model


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


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_torch_scheduler_of_another_optimizer_is_refused(kind):
    """It was taken, and its optimizer's rates (here 0.7) in place of those that were given (0.1)."""
    comm, model, other = SingleCommunicator(), make_model(), torch.optim.AdamW(make_model().parameters(), lr=0.7)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    foreign, own = SCHEDULERS[kind](other), SCHEDULERS[kind](plain)
    words = rf"{kind} was made on another AdamW than the SGD(.|\n)*allowed: a scheduler made on(.|\n)*schedule={kind}\(optimizer"
    for schedule in (foreign, ht.schedules.TorchSchedule(foreign)):
        with pytest.raises(ConfigError, match=words):
            ht.Trainer(comm, model, plain, loss_fn, schedule=schedule)
    ht.Trainer(comm, model, plain, loss_fn, schedule=own)
    wrapped = ht.DistributedOptimizer(plain, comm, scheduler_is_rebased=True)
    with pytest.raises(ConfigError, match=words):
        LearningRate(wrapped, foreign, steps_per_epoch=4, total_steps=40)
    for schedule in (own, SCHEDULERS[kind](wrapped)):  # made before and after wrapping
        LearningRate(wrapped, schedule, steps_per_epoch=4, total_steps=40)
        assert schedule_for(plain, schedule).scheduler is schedule
    twin = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)  # made anew on the same parameters
    with pytest.raises(ConfigError, match="another SGD than the SGD"):
        ht.Trainer(comm, model, twin, loss_fn, schedule=own)


def test_a_composed_scheduler_holds_schedulers_of_one_optimizer():
    """torch itself sees to that; `schedule_for` need only look at the outer one."""
    first, second = (torch.optim.SGD(make_model().parameters(), lr=0.1) for _ in range(2))
    parts = [torch.optim.lr_scheduler.ConstantLR(first), torch.optim.lr_scheduler.ConstantLR(second)]
    with pytest.raises(ValueError, match="same optimizer"):
        torch.optim.lr_scheduler.SequentialLR(first, parts, milestones=[2])
    with pytest.raises(ValueError, match="same optimizer"):
        torch.optim.lr_scheduler.ChainedScheduler(parts, optimizer=first)
