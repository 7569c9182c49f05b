"""char_transformer.py: the loss per character on 2 ranks is that on 1, though they hold different numbers of characters."""

import json
import math

import pytest

from tests.examples.start import run_example


def losses(launcher, num_ranks, folder):
    log = folder / f"{num_ranks}.jsonl"
    settings = {"global_batch": 8, "steps": 100, "log": log}
    done, result = run_example("char_transformer.py", launcher, num_ranks, folder / f"{num_ranks}.json", **settings)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "step"], result


def test_loss_per_character_is_that_of_one_rank(tmp_path):
    (alone, result_alone), (together, result) = losses("alone", 1, tmp_path), losses("mpirun", 2, tmp_path)
    worst = max(abs(a - b) for a, b in zip(alone, together))
    print(f"loss per character {alone[0]:.4f} -> {alone[-1]:.4f}; at most {worst:.1e} between 1 and 2 ranks in 100 steps")
    assert len(alone) == len(together) == 100
    assert worst <= 1e-5
    assert alone[-1] < alone[0] - 1  # it learns
    assert result["test_loss"] == pytest.approx(result_alone["test_loss"], abs=1e-5)
    assert result["lr_peak"] == pytest.approx(3e-3 * math.sqrt(8 / 32))
