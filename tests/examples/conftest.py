"""Small data for the examples, and one start on two ranks for those that have one communicator and no need of more."""

import gzip
import json
import random
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from tests.examples.start import ONE_THREAD, read, words
from tests.harness import run_ranks
from tests.rank_start import NO_COMPILER

# Label -> example, settings, dtype. What the tests on two ranks compare with the same settings on one.
CHARACTERS = {"global_batch": 8, "steps": 60}
SQUARES = {"global_batch": 32, "epochs": 6, "sync_batchnorm": True}
IMAGES = {"global_batch": 32, "epochs": 6, "lr": 0.1}
SPOTS = {"image_size": 32, "global_batch": 8, "micro_batch": 2, "epochs": 1, "num_workers": 0}
RING = {"global_batch": 33, "steps": 30}  # 33: 17 and 16 samples on two ranks


def write_idx(path, values):
    shape = b"".join(size.to_bytes(4, "big") for size in values.shape)
    data = bytes([0, 0, 8, values.dim()]) + shape + values.numpy().tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture(scope="session")
def squares(tmp_path_factory):
    """For fashion_mnist.py: bright squares in one of ten places; one file of each kind packed. 159: the last batch is small and odd."""
    folder = tmp_path_factory.mktemp("squares")
    labels = torch.arange(159, dtype=torch.uint8) % 10
    images = torch.randint(0, 100, (159, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for image, label in zip(images, labels.tolist()):
        image[14 * (label % 2) : 14 * (label % 2) + 14, 5 * (label // 2) : 5 * (label // 2) + 5] += 150
    for name in ("train", "t10k"):
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels)
    return folder


@pytest.fixture(scope="session")
def spots(tmp_path_factory):
    """For imagenet_folder.py: two classes, red and blue, in sizes that are not square; one image is grey, as a few of ImageNet's are."""
    folder, draw = tmp_path_factory.mktemp("spots"), random.Random(0)
    for part, count in (("train", 9), ("val", 3)):
        for name, colour in (("blue", (30, 30, 200)), ("red", (200, 30, 30))):
            path = folder / part / name
            path.mkdir(parents=True)
            for number in range(count):
                image = Image.new("RGB", (5, 5))
                image.putdata([tuple(int(value * draw.random()) for value in colour) for _ in range(25)])
                image.resize((40 + number, 50)).save(path / f"{number}.jpg")
    Image.new("L", (40, 50), 100).save(folder / "train/red/grey.jpg")
    return folder


@pytest.fixture(scope="session")
def on_two_ranks(tmp_path_factory, squares, spots):
    """`on_two_ranks(name)`: what the example `name` printed there, its result, the models it returned and what each rank sent."""
    folder = tmp_path_factory.mktemp("two-ranks")

    def run(name, *arguments, dtype="float32", as_messages=False, **settings):
        return f"{name}.py", words(folder / f"{name}.json", *arguments, **settings), dtype, as_messages

    runs = {
        "char_transformer": run("char_transformer", log=folder / "char_transformer.jsonl", **CHARACTERS),
        "fashion_mlp": run("fashion_mlp", "--data", squares, **IMAGES),
        "fashion_mnist": run("fashion_mnist", "--data", squares, **SQUARES),
        "gan": run("gan", dtype="float64", as_messages=True, **RING),
        "imagenet_folder": run("imagenet_folder", "--data", spots, checkpoints=folder / "checkpoints", **SPOTS),
    }
    start = run_ranks("mpirun", 2, ["-m", "tests.examples.as_program", folder, json.dumps(runs)], 200, {**ONE_THREAD, **NO_COMPILER})

    def found(name):
        text = folder / f"{name}.txt"
        assert text.exists(), f"{name} did not end\n{start}"
        assert (folder / f"{name}.json").exists(), text.read_text()
        return SimpleNamespace(
            printed=text.read_text(),
            result=read(folder / f"{name}.json", 2),
            folder=folder,
            models=torch.load(folder / f"{name}.pt"),
            sent=[json.loads((folder / f"{name}-sent-{rank}.json").read_text()) for rank in (0, 1)],
        )

    return found
