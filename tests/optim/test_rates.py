"""The rate of a group is its reference times one factor, however often that is asked for."""

import pytest
import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.rates import REFERENCE, SCALE, get_rate, scale_groups, set_rate
from tests.properties import given, st


@given(st.floats(1e-6, 10), st.lists(st.floats(0.01, 100), min_size=1, max_size=5))
def test_the_last_factor_counts(rate, factors):
    group = {"lr": rate}
    for factor in factors:
        scale_groups([group], factor)
        scale_groups([group], factor)
    assert group["lr"] == pytest.approx(rate * factors[-1])
    assert (group[REFERENCE], group[SCALE]) == (rate, factors[-1])


def test_exact_when_scaled_once():
    group = {"lr": 0.1}
    scale_groups([group], 3.0)
    assert group["lr"] == 0.1 * 3.0


def test_reference_is_the_initial_rate_where_a_scheduler_moved_it():
    group = {"lr": 0.04, "initial_lr": 0.1}
    scale_groups([group], 2.0, from_initial=True)
    assert (group["lr"], group[REFERENCE]) == (0.08, 0.1)
    stale = {"lr": 0.04, "initial_lr": 0.1}  # of a scheduler that is gone
    scale_groups([stale], 2.0)
    assert (stale["lr"], stale[REFERENCE]) == (0.08, 0.04)


def test_zero_stays_zero():
    group = {"lr": 0.0}
    scale_groups([group], 2.0)
    scale_groups([group], 4.0)
    assert group["lr"] == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensors_are_written_in_place(dtype):
    rate = torch.tensor(0.5, dtype=dtype)
    group = {"lr": rate}
    scale_groups([group], 4.0)
    assert group["lr"] is rate and rate.item() == 2.0
    set_rate(group, 0.25)
    assert get_rate(group) == rate.item() == 0.25


@pytest.mark.parametrize("rate", [-1e-9, float("nan"), float("inf")])
def test_bad_rates(rate):
    with pytest.raises(ConfigError, match="learning rate"):
        scale_groups([{"lr": rate}], 2.0)


def test_one_tensor_in_several_groups_is_scaled_once():
    rate = torch.tensor(0.1)
    groups = [{"lr": rate}, {"lr": rate}, {"lr": rate}]
    scale_groups(groups, 8.0)
    assert [group["lr"].item() for group in groups] == pytest.approx([0.8] * 3)
    set_rate(groups[0], 0.5)
    assert groups[1]["lr"].item() == pytest.approx(0.8)
