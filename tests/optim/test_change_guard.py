"""Somebody else's writes are found, by and by."""

import pytest
import torch

from hvd_trainer.optim.change_guard import MOST_SAMPLES, ChangeGuard, stretch_of


def test_a_change_is_found_sooner_or_later():
    memory = torch.zeros(1000)
    guard = ChangeGuard([stretch_of(memory, 0, 1000)])
    guard.take()
    assert not guard.differ()
    found = 0
    for _ in range(1000):
        guard.take()
        memory[::10] += 1
        found += guard.differ()
    assert found == 100  # every place is looked at once in a thousand steps
    guard.forget()
    assert not guard.differ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_equals_itself_and_minus_zero_is_a_change(dtype):
    memory = torch.full((1,), torch.nan, dtype=dtype)
    guard = ChangeGuard([stretch_of(memory, 0, 1)])
    guard.take()
    assert not guard.differ()
    memory.zero_()
    guard.take()
    memory.neg_()
    assert guard.differ()


def test_of_many_stretches_all_are_looked_at_in_turn():
    memory = torch.zeros(3 * MOST_SAMPLES)
    guard = ChangeGuard([stretch_of(memory, at, at + 1) for at in range(len(memory))])
    found = 0
    for _ in range(3):
        guard.take()
        memory[5] += 1
        found += guard.differ()
    assert found == 1
