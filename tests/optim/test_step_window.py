"""The nominal weight, below the optimizer; what a window refuses is shown in test_distributed, over every way."""

import pytest

from hvd_trainer.optim.step_window import power_of_two


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 1.0), (48.0, 64.0), (45.0, 32.0), (0.3, 0.25), (2.0**40, 2.0**40), (0.0, 1.0)])
def test_the_next_power_of_two(weight, expected):
    assert power_of_two(weight) == expected
