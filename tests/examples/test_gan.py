"""gan.py: two optimizers in one loop; the models of 2 ranks are those of 1, and each backward sends its own gradients."""

import json

import pytest
import torch

from tests.examples.start import run_example
from tests.harness import run_ranks


def test_models_of_two_ranks_are_those_of_one(tmp_path):
    for launcher, num_ranks in (("alone", 1), ("mpirun", 2)):
        run_ranks(launcher, num_ranks, ["-m", "tests.examples.gan_models", tmp_path], timeout_s=120).ok()
    alone, together = (torch.load(tmp_path / f"{n}.pt") for n in (1, 2))
    assert len(alone) == 12
    assert max((a - b).abs().max().item() for a, b in zip(alone, together)) <= 1e-10

    # One bucket a model: the discriminator's, then the generator's, and so on; nothing of the one in the other's step.
    for rank in (0, 1):
        sent = json.loads((tmp_path / f"sent-2-{rank}.json").read_text())
        buckets = [name for name in sent if "bucket" in name]
        assert buckets == [buckets[0], buckets[1]] * 30
        assert buckets[0] != buckets[1]


def test_starts_under_horovodrun(tmp_path):
    _, result = run_example("gan.py", "horovodrun-gloo", 2, tmp_path / "result.json", steps=20)
    assert result["lr_peak"] == pytest.approx(1e-3)


@pytest.mark.slow
def test_finds_the_ring(tmp_path):
    """27 s of one core. Measured: 92 % near a centre, 8 of 8 centres."""
    _, result = run_example("gan.py", "alone", 1, tmp_path / "result.json", timeout_s=280)
    assert result["centres"] == 8
    assert result["on_ring"] >= 0.8
