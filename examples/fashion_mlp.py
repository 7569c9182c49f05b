"""Fashion-MNIST with a small MLP: the script that `hvd-trainer tune` finds a batch, a rate and an optimizer for.

    python examples/fashion_mlp.py
    mpirun -np 2 python examples/fashion_mlp.py --set global_batch=256 --set lr=0.3 --json result.json
    hvd-trainer tune examples/fashion_mlp.py --target "val_loss<=0.42" --ranks 1,2

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

import hvd_trainer as ht


@dataclass
class Config:
    global_batch: int = 64
    lr: float = 0.1  # for a batch of 64
    optimizer: str = "sgd"
    warmup_epochs: float = 0
    epochs: int = 10
    seed: int = 0
    data: str = "/usr/share/datasets/fashion-mnist"
    json: str = ""


def read_train(folder):
    """Images and labels, the last sixth of them to validate with."""
    images = read_idx(Path(folder, "train-images-idx3-ubyte")).unsqueeze(1)
    labels = read_idx(Path(folder, "train-labels-idx1-ubyte")).long()
    images, num = (images - 73.0) / 90.0, len(images) * 5 // 6  # mean and deviation of the pixels
    return (images[:num], labels[:num]), (images[num:], labels[num:])


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def losses_of(images, labels):
    """The loss of samples that are chosen by number: they are in memory, so a batch is one look-up and no list of images."""

    def loss_fn(model, indices):
        return ht.Weighted(F.cross_entropy(model(images[indices]), labels[indices], reduction="sum"), len(indices))

    return loss_fn


def main(comm, config):
    train_set, valid_set = ([part.to(comm.device) for part in parts] for parts in read_train(config.data))
    valid_loss = losses_of(*valid_set)
    torch.manual_seed(config.seed)
    model = mlp().to(comm.device)
    trainer = ht.Trainer(
        comm, model, ht.make_optimizer(config.optimizer, model, lr=config.lr), losses_of(*train_set),
        callbacks=[
            ht.Warmup(epochs=config.warmup_epochs),
            ht.Evaluate(range(len(valid_set[1])), {"val_loss": valid_loss}, batch_size=2500),
            ht.Progress(),
        ],
    )  # fmt: skip
    plan = ht.BatchPlan(config.global_batch, comm.size, reference_batch=64)
    history = trainer.fit(ht.Loader(range(len(train_set[1])), plan, comm, seed=config.seed), epochs=config.epochs)
    if config.json and comm.rank == 0:
        Path(config.json).write_text(json.dumps({**history[-1], "ranks": comm.size, "lr_peak": trainer.optimizer.peak_lr}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    parser.add_argument("--data", help="folder of the IDX files")
    parser.add_argument("--json", help="where rank 0 writes the result")
    ht.run(main, Config(**vars(parser.parse_known_args()[0])))  # --set and --config are read by ht.run
