"""A step's time from its parts: the limits of the overlap, and Pollux' table."""

import pytest

from hvd_trainer.cost.goodput import CountedSync
from hvd_trainer.cost.step_time import Compute, StepTime, overlapped
from tests.properties import given, st
from tests.vectors import vector

TIMES = st.floats(1e-6, 1e3)


@given(TIMES, TIMES, st.floats(1, 10))
def test_overlap_lies_between_the_longer_one_and_the_sum(compute, sync, gamma):
    both = overlapped(compute, sync, gamma)
    assert max(compute, sync) <= both <= (compute + sync) * (1 + 1e-12)
    assert both == pytest.approx(overlapped(sync, compute, gamma))
    assert overlapped(compute, sync, 1.0) == pytest.approx(compute + sync)
    assert overlapped(compute, 0.0, gamma) == compute


@given(TIMES, TIMES, st.floats(1, 9))
def test_more_overlap_is_never_slower(compute, sync, gamma):
    assert overlapped(compute, sync, gamma + 1) <= overlapped(compute, sync, gamma) * (1 + 1e-12)


def test_accumulated_micro_batches_pay_no_communication():
    step = StepTime(Compute(0.01, 0.001), update_s=0.002)
    assert step.seconds(16, 4, sync_s=0.1) == pytest.approx(3 * 0.026 + 0.002 + 0.126)


def test_a_knee_changes_the_slope_and_nothing_jumps():
    bent = Compute(0.01, 0.001, knee=32, beyond_s=0.001)
    assert bent.seconds(32) == Compute(0.01, 0.001).seconds(32)
    assert bent.seconds(33) - bent.seconds(32) == pytest.approx(0.002)


def pollux_step(p):
    """The vector's parameters in our terms."""
    step = StepTime(Compute(p["alpha_c"], p["beta_c"]), gamma=p["gamma"])
    return step, CountedSync(p["alpha_r"], p["beta_r"], p["alpha_n"], p["beta_n"])


def test_goodput_vector_step_times():
    data = vector("goodput")
    step, sync = pollux_step(data.inputs["perf"])
    for row in data.expected["rows"]:
        seconds = step.seconds(row["micro"], row["accum"] + 1, sync.seconds(row["nodes"], row["replicas"]))
        assert seconds == pytest.approx(row["t_iter"], rel=data.rtol)
