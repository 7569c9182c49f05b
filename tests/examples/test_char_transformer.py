"""char_transformer.py: the loss per character on 2 ranks is that on 1, though they hold different numbers of characters."""

import json
import math

import pytest

from tests.examples.conftest import CHARACTERS
from tests.examples.start import run_here


def losses(log):
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "step"]


def test_loss_per_character_is_that_of_one_rank(on_two_ranks, tmp_path):
    _, result_alone = run_here("char_transformer.py", tmp_path / "1.json", log=tmp_path / "1.jsonl", **CHARACTERS)
    together = on_two_ranks("char_transformer")
    alone, on_two = losses(tmp_path / "1.jsonl"), losses(together.folder / "char_transformer.jsonl")
    worst = max(abs(a - b) for a, b in zip(alone, on_two))
    print(f"loss per character {alone[0]:.4f} -> {alone[-1]:.4f}; at most {worst:.1e} between 1 and 2 ranks in {len(alone)} steps")
    assert len(alone) == len(on_two) == CHARACTERS["steps"]
    assert worst <= 1e-5
    assert alone[-1] < alone[0] - 1  # it learns
    assert together.result["test_loss"] == pytest.approx(result_alone["test_loss"], abs=1e-5)
    assert together.result["lr_peak"] == pytest.approx(3e-3 * math.sqrt(8 / 32))
