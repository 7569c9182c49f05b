"""The MLP that `tune` is shown with: it learns, and two ranks give the validation loss of one."""

import pytest

from tests.examples.conftest import IMAGES
from tests.examples.start import run_here


def test_two_ranks_give_the_loss_of_one(squares, on_two_ranks, tmp_path):
    printed, alone = run_here("fashion_mlp.py", tmp_path / "alone.json", "--data", squares, **IMAGES)
    assert "132 samples" in printed  # five sixths of 159
    assert alone["val_loss"] < 1.2  # ten classes: ln 10 before the first step
    both = on_two_ranks("fashion_mlp").result
    assert both["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-4)
    assert both["lr_peak"] == alone["lr_peak"] == pytest.approx(0.05)  # 0.1 for a batch of 64
