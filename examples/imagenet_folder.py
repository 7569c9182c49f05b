"""ResNet-50 on ImageNet in one hour, from a folder with train/<class>/*.jpg and val/<class>/*.jpg:

    horovodrun -np 256 -H ... python examples/imagenet_folder.py --data /data/imagenet --set precision=bf16
    mpirun -np 2 python examples/imagenet_folder.py --data FOLDER --set global_batch=256
    python examples/imagenet_folder.py --data FOLDER --set global_batch=256 --json result.json

The recipe is that of Goyal et al. 2017 (arXiv 1706.02677, section 5.1) on any number of ranks and with any batch.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from parts.image_folder import ImageFolder
from parts.resnet50 import resnet50
from torch.nn import functional as F

import hvd_trainer as ht


@dataclass
class Config:
    data: str = "imagenet"
    image_size: int = 224
    global_batch: int = 8192
    micro_batch: int = 32  # what batch normalisation sees, whatever the number of ranks
    epochs: int = 90
    num_workers: int = 4  # processes a rank that read images; they change nothing but the time
    precision: str = "float32"
    checkpoints: str = "runs/imagenet"
    json: str = ""


def loss_fn(model, batch):
    x, y = batch
    return ht.Weighted(F.cross_entropy(model(x), y, reduction="sum"), len(y))


def accuracy(model, batch):
    x, y = batch
    return {"val_accuracy": ht.Weighted((model(x).argmax(1) == y).sum(), len(y))}


def main(comm, config):
    train_set = ImageFolder(Path(config.data, "train"), config.image_size, augment=True)
    val_set = ImageFolder(Path(config.data, "val"), config.image_size, augment=False)
    torch.manual_seed(0)
    model = resnet50(train_set.num_classes).to(comm.device)
    decayed = {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 1e-4}
    free = {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0}  # normalisation and biases
    sgd = torch.optim.SGD([decayed, free], lr=0.1, momentum=0.9, nesterov=True)  # for a batch of 256
    plan = ht.BatchPlan(config.global_batch, comm.size, reference_batch=256, micro_batch=config.micro_batch)
    evaluate, checkpoint = ht.Evaluate(val_set, accuracy, buffers="mean"), ht.Checkpoint(config.checkpoints)
    trainer = ht.Trainer(
        comm, model, sgd, loss_fn,
        schedule=ht.schedules.multistep([30, 60, 80]),
        callbacks=[ht.Warmup(epochs=5), evaluate, checkpoint, ht.Progress()],
        precision=config.precision,
    )  # fmt: skip
    loader = ht.Loader(train_set, plan, comm, drop_last=True, num_workers=config.num_workers)
    history = trainer.fit(loader, epochs=config.epochs, resume="auto")
    if config.json and comm.rank == 0:
        result = {**history[-1], "ranks": comm.size, "lr_peak": trainer.optimizer.peak_lr}
        Path(config.json).write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    parser.add_argument("--data", help="folder with train/ and val/")
    parser.add_argument("--json", help="where rank 0 writes the result")
    ht.run(main, Config(**vars(parser.parse_known_args()[0])))  # --set and --config are read by ht.run
