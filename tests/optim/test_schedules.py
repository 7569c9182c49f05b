"""Warm-up and schedules: pure functions of the step, exact at both ends, never above the peak."""

import functools
import math

import pytest
import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.schedules import (
    StepSchedule,
    Timeline,
    TorchSchedule,
    as_schedule,
    constant,
    cosine,
    linear,
    multistep,
    polynomial,
    warmup_lr,
)
from tests.properties import given, st

SCHEDULES = {
    "constant": constant(),
    "cosine": cosine(),
    "cosine to a tenth": cosine(final=0.1),
    "linear": linear(),
    "polynomial": polynomial(2.0),
    "multistep": multistep([3, 5.5]),
}
rates = st.floats(1e-6, 10)
lengths = st.floats(0, 300) | st.integers(0, 300).map(float)


# -- warm-up --------------------------------------------------------------------------------------------------------


def test_goyals_ramp():
    """vectors/warmup_linear: base 0.1, k = 8, 5 epochs of 10 steps."""
    for step in range(51):
        expected = 0.1 + step * 7 * 0.1 / 50
        assert warmup_lr(step, reference_lr=0.1, peak_lr=0.8, warmup_steps=50) == pytest.approx(expected, rel=1e-12)
    assert warmup_lr(0, reference_lr=0.1, peak_lr=0.8, warmup_steps=50) == 0.1
    assert warmup_lr(50, reference_lr=0.1, peak_lr=0.8, warmup_steps=50) == 0.8


def test_fractional_epochs_stay_below_the_peak():
    """2.5 epochs on 8 ranks: Horovod's example goes to 1.175 times the peak."""
    ramp = [warmup_lr(step, reference_lr=1 / 8, peak_lr=1.0, warmup_steps=2.5 * 10) for step in range(40)]
    assert max(ramp) == 1.0
    assert ramp[24] < 1.0 and ramp[25] == 1.0
    assert warmup_lr(2, reference_lr=0.0, peak_lr=1.0, warmup_steps=2.5) == pytest.approx(0.8)


@given(rates, st.floats(1, 100), lengths)
def test_warmup_rises_evenly_to_the_peak(reference, factor, length):
    peak = reference * factor
    ramp = [warmup_lr(step, reference_lr=reference, peak_lr=peak, warmup_steps=length) for step in range(math.ceil(length) + 3)]
    assert ramp[0] == (peak if length == 0 else reference)
    assert all(a <= b for a, b in zip(ramp, ramp[1:]))
    assert max(ramp) == peak and ramp[math.ceil(length)] == peak
    inside = ramp[: math.ceil(length)]
    differences = [b - a for a, b in zip(inside, inside[1:])]
    assert differences == pytest.approx([(peak - reference) / max(length, 1e-9)] * len(differences), rel=1e-6, abs=peak * 1e-12)
    if length >= 1:  # no jump at the hand-over: the last step up is not larger than the others
        assert ramp[math.ceil(length)] - ramp[math.ceil(length) - 1] <= (peak - reference) / length * (1 + 1e-9) + peak * 1e-12


def test_a_reference_above_the_peak_starts_at_the_peak():
    assert [warmup_lr(step, reference_lr=1.0, peak_lr=0.5, warmup_steps=4) for step in range(6)] == [0.5] * 6


# -- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@given(st.integers(1, 50), st.integers(1, 20), st.floats(0, 1))
def test_start_at_the_peak_and_never_rise(name, per_epoch, epochs, share):
    total = per_epoch * epochs
    timeline = Timeline(per_epoch, total, warmup_steps=share * total)
    values = [SCHEDULES[name](step, timeline) for step in range(total + 3)]
    assert values[0] == 1.0
    assert all(0 <= value <= 1 for value in values)
    assert all(a >= b - 1e-12 for a, b in zip(values, values[1:]))


@pytest.mark.parametrize("name", ["constant", "cosine", "linear", "polynomial", "cosine to a tenth"])
@given(st.integers(1, 20), st.integers(4, 30), st.floats(0, 2.9))
def test_no_dip_and_no_jump_at_the_hand_over(name, per_epoch, epochs, warm_epochs):
    """Warm-up x schedule: up to the peak step by step, then down by no more than the schedule's own steps."""
    timeline = Timeline(per_epoch, per_epoch * epochs, warm_epochs * per_epoch)

    def rate(step):
        return warmup_lr(step, reference_lr=0.25, peak_lr=1.0, warmup_steps=timeline.warmup_steps) * SCHEDULES[name](step, timeline)

    end = math.ceil(timeline.warmup_steps)
    length = timeline.total_steps - timeline.warmup_steps
    assert [rate(step) for step in range(end)] == sorted(rate(step) for step in range(end))
    steepest = 2.0 / length  # of the polynomial; the others are flatter
    if end:
        assert rate(end) >= rate(end - 1) - steepest
    assert rate(end) >= 1 - steepest


def test_ends():
    timeline = Timeline(10, 100, 20.0)
    assert cosine()(100, timeline) == pytest.approx(0, abs=1e-15)
    assert cosine(final=0.1)(100, timeline) == pytest.approx(0.1)
    assert linear()(60, timeline) == 0.5
    assert polynomial(2.0)(60, timeline) == 0.25
    assert linear(total_epochs=5)(50, timeline) == 0.0 == linear(total_epochs=5)(99, timeline)
    assert cosine(total_epochs=10)(30, Timeline(10, 999, 20.0)) == cosine()(30, timeline)


def test_decay_that_ends_within_the_warm_up():
    timeline = Timeline(10, 10, 20.0)
    assert [linear()(step, timeline) for step in (0, 9, 10, 20)] == [1.0, 1.0, 0.0, 0.0]


def test_milestones_fall_on_the_step_that_they_name():
    """1.1 x 10 is 11.000000000000002 in floating point; the milestone is step 11."""
    for per_epoch in (7, 10, 30, 100):
        for step in range(1, 5 * per_epoch):
            f = multistep([step / per_epoch])
            timeline = Timeline(per_epoch, 1000)
            assert (f(step - 1, timeline), f(step, timeline)) == (1.0, 0.1), (step, per_epoch)
    assert [multistep([1.1])(step, Timeline(10, 1000)) for step in (10, 11)] == [1.0, 0.1]


@pytest.mark.parametrize(
    "make",
    [
        lambda: cosine(total_epochs=0), lambda: cosine(final=1.5), lambda: cosine(final=-0.1), lambda: linear(total_epochs=-1),
        lambda: linear(total_epochs=math.nan), lambda: polynomial(0), lambda: multistep([]), lambda: multistep([2, 1]),
        lambda: multistep([0, 1]), lambda: multistep([1], gamma=0),
    ],
)  # fmt: skip
def test_arguments_that_cannot_be(make):
    with pytest.raises(ConfigError):
        make()


# -- whatever a user may pass ---------------------------------------------------------------------------------------


def test_functions_of_the_step():
    timeline = Timeline(10, 100)
    assert as_schedule(None).rates(5, timeline, [0.1, 0.2]) == [0.1, 0.2]
    assert as_schedule(lambda step: 1 / (1 + step)).rates(1, timeline, [0.1, 0.2]) == [0.05, 0.1]
    assert as_schedule(lambda step, timeline: step / timeline.total_steps).rates(50, timeline, [1.0]) == [0.5]
    assert as_schedule(lambda step, power=2: step**power).rates(3, timeline, [1.0]) == [9.0]
    assert as_schedule(lambda step: torch.tensor(0.5)).rates(0, timeline, [1.0]) == [0.5]
    same = StepSchedule(constant())
    assert as_schedule(same) is same


@pytest.mark.parametrize("bad", [1.0, "cosine", torch.optim.lr_scheduler.StepLR, cosine.__class__], ids=repr)
def test_what_is_no_schedule(bad):
    with pytest.raises(ConfigError, match="schedule="):
        as_schedule(bad)


def make_scheduler(kind, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    return getattr(torch.optim.lr_scheduler, kind)(optimizer, **options)


def test_torch_schedulers_step_as_they_mean_to():
    assert as_schedule(make_scheduler("StepLR", step_size=1)).every == "epoch"
    assert as_schedule(make_scheduler("OneCycleLR", max_lr=1.0, total_steps=10)).every == "step"
    assert as_schedule(make_scheduler("CyclicLR", base_lr=0.1, max_lr=1.0)).every == "step"
    assert TorchSchedule(make_scheduler("StepLR", step_size=1), every="step").every == "step"
    with pytest.raises(ConfigError, match="every="):
        TorchSchedule(make_scheduler("StepLR", step_size=1), every="batch")


def test_plateau_has_no_row_within_an_epoch():
    with pytest.raises(ConfigError, match="ReduceLROnPlateau"):
        TorchSchedule(make_scheduler("ReduceLROnPlateau"), every="step")


def test_a_schedule_says_what_it_is():
    """The text that a checkpoint's recipe holds: equal for equal schedules, another one for others."""

    def halving(step):
        return 0.5**step

    kinds = {
        None: "constant()",
        cosine(20): "cosine(total_epochs=20, final=0)",
        cosine(total_epochs=20.0): "cosine(total_epochs=20, final=0)",
        linear(final=0.1): "linear(total_epochs=None, final=0.1)",
        polynomial(3, 5): "polynomial(power=3, total_epochs=5, final=0)",
        multistep([1.5, 3]): "multistep([1.5, 3], gamma=0.1)",
        halving: "function halving",
        (lambda step: 1.0): "function <lambda>",
        functools.partial(halving): "function partial",
    }
    assert [as_schedule(schedule).kind for schedule in kinds] == list(kinds.values())
