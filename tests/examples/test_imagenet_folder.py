"""imagenet_folder.py: the model is ResNet-50, the recipe that of the paper, and images of a folder train it."""

import random
import sys

import pytest
import torch

from hvd_trainer.errors import HvdTrainerError
from tests.examples.conftest import SPOTS
from tests.examples.start import run_example, run_here
from tests.harness import ROOT


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "parts"]:
        del sys.modules[name]


def test_model_is_resnet50(parts):
    from parts.resnet50 import Bottleneck, resnet50

    model = resnet50(1000)
    assert sum(p.numel() for p in model.parameters()) == 25_557_032  # as torchvision's
    blocks = [module for module in model.modules() if isinstance(module, Bottleneck)]
    assert len(blocks) == 16
    assert all(block.branch[-1].weight.eq(0).all() for block in blocks)  # the last gamma of each
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 1000)


def test_crops_are_inside_and_follow_the_seed(parts):
    from parts.image_folder import central_box, random_box

    random.seed(0)
    boxes = [random_box(80, 50) for _ in range(2000)]
    areas = [(x1 - x0) * (y1 - y0) / 4000 for x0, y0, x1, y1 in boxes]
    ratios = [(x1 - x0) / (y1 - y0) for x0, y0, x1, y1 in boxes]
    assert all(0 <= x0 < x1 <= 80 and 0 <= y0 < y1 <= 50 for x0, y0, x1, y1 in boxes)
    assert 0.079 <= min(areas) < 0.1 and 0.8 < max(areas) <= 1
    assert 0.749 <= min(ratios) < 0.8 and 1.25 < max(ratios) <= 4 / 3 + 1e-9
    random.seed(0)
    assert random_box(80, 50) == boxes[0]
    assert central_box(80, 50, 1) == (15, 0, 65, 50)
    assert random_box(1000, 10) == central_box(1000, 10, 1)  # no crop of that shape fits


def test_trains_on_a_few_images(on_two_ranks):
    """The rate is the paper's, 0.1 for 256; statistics are over a micro-batch; 19 images make two batches of 8."""
    found = on_two_ranks("imagenet_folder")
    assert "8 = 2 ranks x 4; micro-batches: 2 x 2" in found.printed
    assert "0.1 for batch 256, peak 0.003125" in found.printed
    assert "last batch of 3 dropped" in found.printed
    assert found.result["step"] == 2
    assert 0 <= found.result["val_accuracy"] <= 1
    assert len(list((found.folder / "checkpoints").glob("step-*"))) == 1


@pytest.mark.slow
def test_ranks_and_workers_change_nothing(spots, tmp_path):
    """The same micro-batches of 4 images, augmented alike: one process, and two ranks with a worker each."""
    settings = {**SPOTS, "micro_batch": 4, "epochs": 2, "checkpoints": tmp_path / "1"}
    _, alone = run_here("imagenet_folder.py", tmp_path / "1.json", "--data", spots, **settings)
    settings.update(num_workers=1, checkpoints=tmp_path / "2")
    _, together = run_example("imagenet_folder.py", "mpirun", 2, tmp_path / "2.json", "--data", spots, **settings)
    print(alone["loss"], together["loss"])
    assert together["loss"] == pytest.approx(alone["loss"], abs=1e-4)


def test_a_folder_without_images_is_an_error_with_the_fix(tmp_path):
    """Of ours, so that it is shown without a traceback."""
    with pytest.raises(HvdTrainerError, match=r"(?s)no images in.*train/<class>/\*\.jpg"):
        run_here("imagenet_folder.py", tmp_path / "1.json", "--data", tmp_path)
