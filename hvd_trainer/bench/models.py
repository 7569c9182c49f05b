"""The models, losses, batches and optimizers behind the names in `workloads`; a user's script gives its own four."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import torch
from torch import nn
from torch.nn import functional as F

from hvd_trainer.bench.workloads import Workload
from hvd_trainer.errors import ConfigError
from hvd_trainer.values import Weighted

NUM_BATCHES = 8  # each rank goes round in these, made beforehand: loading data is not what is measured
CLASSES = 10
Loss = Union[Weighted, torch.Tensor]


@dataclass
class Task:
    """What a column trains, on one rank.

    Args:
        model: with parameters that are equal on all ranks.
        loss: `loss(model, batch)` gives `Weighted(total, weight)`, or a mean as a plain tensor.
        batches: of this rank, in the order of the steps; the step after the last one uses the first again.
        optimizer: over the model's parameters.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Loss]
    batches: list[Any]
    optimizer: torch.optim.Optimizer

    @property
    def num_params(self) -> int:
        """Numbers that are trained."""
        return sum(p.numel() for p in self.model.parameters() if p.requires_grad)

    @property
    def num_tensors(self) -> int:
        """Tensors that are trained."""
        return sum(p.requires_grad for p in self.model.parameters())


def build(workload: Workload, rank: int, num_ranks: int) -> Task:
    """The task of a workload on one rank: the same model on all ranks, batches of its own for each.

    Args:
        workload: which.
        rank, num_ranks: for which rank of how many.

    Raises:
        ConfigError: the user's `make()` is not there or returns something else than the four.
    """
    seed(0)
    make = user_make(workload.script) if workload.script else lambda: built_in(workload.model or workload.name)
    made = make()
    if not isinstance(made, tuple) or len(made) != 4:
        raise ConfigError(
            f"make() of {workload.script} returned {type(made).__name__}",
            "model, loss, batch, optimizer",
            "see docs/bench.md for a script",
        )
    model, loss, batch, optimizer = made
    batches = []
    for number in range(NUM_BATCHES):
        seed(1 + rank * NUM_BATCHES + number)
        batches.append(batch(workload.samples(rank, num_ranks)))
    return Task(model, loss, batches, optimizer)


def seed(value: int) -> None:
    """All generators that a batch may draw from; numpy's too where somebody loaded it."""
    import numpy

    random.seed(value)
    numpy.random.seed(value)
    torch.manual_seed(value)


def user_make(script: str) -> Callable[[], Any]:
    """The function `make` of a user's file, which is imported under its own name."""
    spec = importlib.util.spec_from_file_location(Path(script).stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, "make", None)):
        raise ConfigError(f"{script} has no function make()", "def make(): return model, loss, batch, optimizer", "see docs/bench.md")
    return module.make


def built_in(name: str) -> tuple:
    """Model, loss, batch maker and optimizer of a built-in workload."""
    rate = 0.01
    if name == "mlp":
        model, shape = dense(64, 128, 128, CLASSES), (64,)
    elif name == "wide":
        model, shape = dense(512, 4096, 4096, CLASSES), (512,)
    elif name == "cnn":
        model, shape = cnn(), (1, 28, 28)
    elif name == "transformer":
        model, shape = Encoder(), (32, 128)
    else:
        width, layers = {
            "params-1e5": (100, 10), "params-1e6": (316, 10), "params-1e7": (1000, 10), "params-1e8": (3162, 10),
            "tensors-10": (320, 10), "tensors-1000": (32, 1000),
        }[name]  # fmt: skip
        model, shape, rate = Chain(width, layers), (width,), 0.01 / layers  # each layer moves the output, they add up

    def batch(num_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(num_samples, *shape), torch.randint(CLASSES, (num_samples,))

    return model, cross_entropy, batch, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Weighted:
    """Summed over the samples, with their number."""
    x, y = batch
    return Weighted(F.cross_entropy(model(x), y, reduction="sum"), len(y))


def dense(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them.

    Example:
        >>> sum(p.numel() for p in dense(64, 128, 128, 10).parameters())
        26122
    """
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers.extend([nn.Linear(inputs, outputs), nn.ReLU()])
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Sequential:
    """Six blocks of two 3x3 convolutions with batch norm; the picture is halved after every second block.

    Example:
        >>> sum(p.numel() for p in cnn().parameters())
        169882
    """
    layers: list[nn.Module] = []
    inputs = 1
    for number, channels in enumerate((16, 16, 32, 32, 64, 64)):
        for _ in range(2):
            layers.extend([nn.Conv2d(inputs, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()])
            inputs = channels
        if number in (1, 3):
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES))


class Encoder(nn.Module):
    """Six encoder layers over 32 vectors of 128, then their mean. No dropout: the columns' losses are compared.

    Example:
        >>> sum(p.numel() for p in Encoder().parameters())
        1190922
    """

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, nhead=4, dim_feedforward=512, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, num_layers=6, enable_nested_tensor=False)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean(1))


class Chain(nn.Module):
    """Square layers without bias, one tensor each; the first numbers of the last one's output are the classes."""

    def __init__(self, width: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(num_layers))
        for layer in self.layers:
            # Orthogonal-like gain 1: a thousand layers neither vanish nor explode, so the losses stay comparable.
            with torch.no_grad():
                layer.weight.normal_(0, 0.05 / width**0.5).add_(torch.eye(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x[:, :CLASSES]
