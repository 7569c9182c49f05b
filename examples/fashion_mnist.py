"""Fashion-MNIST with a small CNN and batch normalisation: more than 0.90 of the test images after four epochs.

    python examples/fashion_mnist.py
    mpirun -np 2 python examples/fashion_mnist.py --set sync_batchnorm=true --json result.json

The images: `apt-get install dataset-fashion-mnist` (Debian), or the four IDX files, packed or not, in `--data FOLDER`.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from parts.idx import read_idx
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import hvd_trainer as ht


@dataclass
class Config:
    global_batch: int = 128
    lr: float = 0.05  # for a batch of 64
    epochs: int = 4
    sync_batchnorm: bool = False  # statistics of the whole batch: the same curve on any number of ranks
    data: str = "/usr/share/datasets/fashion-mnist"
    json: str = ""


def read_set(folder, name):
    images = read_idx(Path(folder, f"{name}-images-idx3-ubyte")).unsqueeze(1)
    labels = read_idx(Path(folder, f"{name}-labels-idx1-ubyte")).long()
    return TensorDataset((images - 73.0) / 90.0, labels)  # mean and deviation of the pixels


def block(channels_in, channels_out):
    conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]


def loss_fn(model, batch):
    x, y = batch
    return ht.Weighted(F.cross_entropy(model(x), y, reduction="sum"), len(y))


def accuracy(model, batch):
    x, y = batch
    return {"test_accuracy": ht.Weighted((model(x).argmax(1) == y).sum(), len(y))}


def main(comm, config):
    train_set, test_set = read_set(config.data, "train"), read_set(config.data, "t10k")
    torch.manual_seed(0)
    model = nn.Sequential(*block(1, 16), *block(16, 32), *block(32, 64), nn.Flatten(), nn.Linear(576, 10))
    if config.sync_batchnorm:
        model = ht.SyncBatchNorm.convert(model, comm)
    model = model.to(comm.device)
    trainer = ht.Trainer(
        comm, model, torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, weight_decay=5e-4), loss_fn,
        schedule=ht.schedules.cosine(),
        callbacks=[ht.Warmup(epochs=0.5), ht.Evaluate(test_set, accuracy, buffers="mean"), ht.Progress()],
    )  # fmt: skip
    plan = ht.BatchPlan(config.global_batch, comm.size, reference_batch=64)
    history = trainer.fit(ht.Loader(train_set, plan, comm, seed=0), epochs=config.epochs)
    if config.json and comm.rank == 0:
        result = {**history[-1], "ranks": comm.size, "lr_peak": trainer.optimizer.peak_lr}
        Path(config.json).write_text(json.dumps({**result, "curve": [row["loss"] for row in history]}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    parser.add_argument("--data", help="folder of the IDX files")
    parser.add_argument("--json", help="where rank 0 writes the result")
    ht.run(main, Config(**vars(parser.parse_known_args()[0])))  # --set and --config are read by ht.run
