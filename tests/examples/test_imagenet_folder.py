"""imagenet_folder.py: the model is ResNet-50, the recipe that of the paper, and images of a folder train it."""

import random
import sys

import pytest
import torch
from PIL import Image

from tests.examples.start import run_example
from tests.harness import ROOT, run_ranks


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "parts"]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path):
    """Two classes, red and blue spots, in sizes that are not square; one image is grey, as a few of ImageNet's are."""
    draw = random.Random(0)
    for part, count in (("train", 9), ("val", 3)):
        for name, colour in (("blue", (30, 30, 200)), ("red", (200, 30, 30))):
            path = tmp_path / part / name
            path.mkdir(parents=True)
            for number in range(count):
                spots = Image.new("RGB", (5, 5))
                spots.putdata([tuple(int(value * draw.random()) for value in colour) for _ in range(25)])
                spots.resize((40 + number, 50)).save(path / f"{number}.jpg")
    Image.new("L", (40, 50), 100).save(tmp_path / "train/red/grey.jpg")
    return tmp_path


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


def train(folder, launcher, num_ranks, file, **settings):
    settings = {"image_size": 32, "global_batch": 8, "micro_batch": 2, "epochs": 1, **settings}
    settings["checkpoints"] = file.with_suffix("")
    return run_example("imagenet_folder.py", launcher, num_ranks, file, "--data", folder, **settings)


def test_trains_on_a_few_images(folder, tmp_path):
    """The rate is the paper's, 0.1 for 256; statistics are over a micro-batch; 19 images make two batches of 8."""
    done, result = train(folder, "mpirun", 2, tmp_path / "r.json", num_workers=0)
    assert "8 = 2 ranks x 4; micro-batches: 2 x 2" in done.stdout
    assert "0.1 for batch 256, peak 0.003125" in done.stdout
    assert "last batch of 3 dropped" in done.stdout
    assert result["step"] == 2
    assert 0 <= result["val_accuracy"] <= 1
    assert len(list((tmp_path / "r").glob("step-*"))) == 1


@pytest.mark.slow
def test_ranks_and_workers_change_nothing(folder, tmp_path):
    """The same micro-batches of 4 images, augmented alike: one process, and two ranks with two workers each."""
    _, alone = train(folder, "alone", 1, tmp_path / "1.json", micro_batch=4, num_workers=0, epochs=2)
    _, together = train(folder, "mpirun", 2, tmp_path / "2.json", micro_batch=4, num_workers=2, epochs=2)
    print(alone["loss"], together["loss"])
    assert together["loss"] == pytest.approx(alone["loss"], abs=1e-4)


def test_a_folder_without_images_is_one_message(tmp_path):
    command = [ROOT / "examples/imagenet_folder.py", "--data", tmp_path]
    result = run_ranks("alone", 1, command, timeout_s=120).failed("no images in", "train/<class>/*.jpg")
    assert "Traceback" not in result.text
