"""Handwritten digits (scikit-learn's 1,797 scans of 8 x 8) on any number of ranks:

    python examples/digits.py
    horovodrun -np 2 python examples/digits.py --set epochs=30 --json result.json
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import hvd_trainer as ht


@dataclass
class Config:
    global_batch: int = 64
    reference_batch: int = 32  # the batch for which lr was tuned
    lr: float = 0.1
    epochs: int = 20
    warmup_epochs: float = 2
    checkpoints: str = "runs/digits"
    json: str = ""


def loss_fn(model, batch):
    x, y = batch
    return ht.Weighted(F.cross_entropy(model(x), y, reduction="sum"), len(y))


def accuracy(model, batch):
    x, y = batch
    return {"test_accuracy": ht.Weighted((model(x).argmax(1) == y).sum(), len(y))}


def main(comm, config):
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train_set, test_set = (TensorDataset(x[part], y[part]) for part in (order[:1437], order[1437:]))

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(comm.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, weight_decay=1e-4)
    plan = ht.BatchPlan(config.global_batch, comm.size, reference_batch=config.reference_batch)
    trainer = ht.Trainer(
        comm, model, optimizer, loss_fn,
        schedule=ht.schedules.cosine(config.epochs),
        callbacks=[ht.Warmup(config.warmup_epochs), ht.Evaluate(test_set, accuracy), ht.Checkpoint(config.checkpoints), ht.Progress()],
    )  # fmt: skip
    history = trainer.fit(ht.Loader(train_set, plan, comm, seed=0), epochs=config.epochs)
    if config.json and comm.rank == 0:
        Path(config.json).write_text(json.dumps({**history[-1], "ranks": comm.size, "lr_peak": trainer.optimizer.peak_lr}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", default="", help="where rank 0 writes the result")
    arguments, _ = parser.parse_known_args()  # --set and --config are read by ht.run
    ht.run(main, Config(json=arguments.json))
