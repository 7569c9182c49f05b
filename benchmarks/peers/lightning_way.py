"""Lightning's Trainer with its DDP strategy over Gloo; what writes, draws or saves is switched off."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

from benchmarks.peers.mean import mean, total


class Module(lightning.LightningModule):
    """The workload as a LightningModule."""

    def __init__(self, task: Any) -> None:
        super().__init__()
        self.model, self.task, self.losses = task.model, task, None

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = self.task.loss(self.model, batch)
        if self.losses is not None:
            self.losses.append(float(total(loss).detach()))
        return mean(loss)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.task.optimizer


class Batches:
    """An iterable: Lightning takes a list for several loaders."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class Stamps(lightning.Callback):
    """The time at the end of each batch."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen.append(time.perf_counter())


class LightningLoop:
    """One `fit` a turn, with the same module and optimizer; its start is outside the time."""

    def __init__(self, task: Any, num_ranks: int) -> None:
        self.module, self.num_ranks = Module(task), num_ranks

    def loop(self, batches: list[Any], losses: list[float] | None) -> list[float]:
        stamps = Stamps()
        self.module.losses = losses
        trainer = lightning.Trainer(
            accelerator="cpu", devices=self.num_ranks, strategy=DDPStrategy(process_group_backend="gloo"), max_epochs=1,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False, callbacks=[stamps],
        )  # fmt: skip
        trainer.fit(self.module, train_dataloaders=Batches(batches))
        return stamps.seen


def make(task: Any, column: Any, meeting: Any) -> LightningLoop:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    return LightningLoop(task, meeting.size)
