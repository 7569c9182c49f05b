"""Random states go through a file and come back."""

import random

import numpy as np
import pytest
import torch

from hvd_trainer.checkpoint.rng import get_rng_state, reseed, set_rng_state
from hvd_trainer.checkpoint.store import Store, load

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def others_states():
    before = get_rng_state(CPU)
    yield
    set_rng_state(before, CPU)


def draw():
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(3).tolist(), torch.randn(1).item()]


def test_round_trip_through_a_checkpoint(tmp_path):
    random.gauss(0, 1), np.random.randn()  # both now hold a second number back
    Store(tmp_path).save(1, {"rng": [get_rng_state(CPU)]}, {})
    expected = [draw(), draw()]
    draw()
    set_rng_state(load(tmp_path)[0]["rng"][0], CPU)
    assert [draw(), draw()] == expected


def test_reseed_repeats_and_differs():
    def after(*arguments):
        reseed(*arguments)
        return draw()

    base = after(1, 2, 3)
    assert after(1, 2, 3) == base
    for other in [(2, 2, 3), (1, 3, 3), (1, 2, 4), (-1, 2, 3), (2**64 + 5, 2, 3)]:
        assert all(a != b for a, b in zip(after(*other), base))
