"""Small trainings, each done twice: by the Trainer on N ranks, and by ten lines of plain torch on whole batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import hvd_trainer as ht
from hvd_trainer.data.order import sample_order

STEPS = 50
NUM_SAMPLES = 103  # global batch 17: six whole batches and one of 1, so that ranks without data occur
GLOBAL_BATCH = 17
REFERENCE_BATCH = 8
SEED = 5


@dataclass(frozen=True)
class Case:
    """One training; the name says what is special about it."""

    name: str
    optimizer: str
    dtype: str = "float64"
    micro_batch: Optional[int] = None
    loss: str = "weighted"
    clip_norm: Optional[float] = None
    sync_batchnorm: bool = False
    reduction: tuple[tuple[str, str], ...] = ()
    rounding: float = 0.0  # of what travels, where it is narrower than the parameters

    @property
    def num_samples(self) -> int:
        # The variance of a batch of one is 0 for torch's module as well; a last batch of 2 still leaves ranks without data.
        return NUM_SAMPLES + 1 if self.sync_batchnorm else NUM_SAMPLES

    @property
    def tolerance(self) -> float:
        return self.rounding or (1e-12 if self.dtype == "float64" else 1e-5)


SHARDS = (("reduce_through", "shared"), ("update_by", "shards"))

CASES = [
    Case("sgd", "sgd"),
    Case("sgd micro", "sgd", micro_batch=2),
    Case("sgd float32", "sgd", dtype="float32"),
    Case("sgd float32 micro", "sgd", dtype="float32", micro_batch=3),
    Case("adamw", "adamw"),
    Case("adamw micro", "adamw", micro_batch=2),
    Case("adamw float32", "adamw", dtype="float32"),
    Case("adamw float32 micro", "adamw", dtype="float32", micro_batch=3),
    Case("plain mean", "sgd", loss="mean"),
    Case("plain mean micro", "sgd", loss="mean", micro_batch=2),
    Case("plain sum", "sgd", loss="sum", micro_batch=2),
    Case("clipped", "sgd", clip_norm=0.05, micro_batch=4),
    Case("sync batchnorm", "sgd", sync_batchnorm=True),
    Case("sgd shards", "sgd", reduction=SHARDS),
    Case("adamw shards micro", "adamw", micro_batch=2, reduction=SHARDS),
    Case("clipped shards", "sgd", clip_norm=0.05, reduction=SHARDS),
    Case("bf16 messages", "sgd", reduction=(("reduce_through", "messages"), ("compression", "bf16")), rounding=1e-2),
    Case("fp16 messages", "sgd", reduction=(("reduce_through", "messages"), ("compression", "fp16")), rounding=1e-3),
]


def make_data(dtype: torch.dtype, num_samples: int = NUM_SAMPLES) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_samples, 6, generator=generator, dtype=torch.float64).to(dtype)
    return TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())


def make_model(dtype: torch.dtype, seed: int = 3, batchnorm: bool = False) -> torch.nn.Module:
    torch.manual_seed(seed)
    middle = [torch.nn.BatchNorm1d(9), torch.nn.Tanh()] if batchnorm else [torch.nn.Tanh()]
    return torch.nn.Sequential(torch.nn.Linear(6, 9), *middle, torch.nn.Linear(9, 3)).to(dtype)


def make_optimizer(case: Case, model: torch.nn.Module, lr_factor: float = 1.0) -> torch.optim.Optimizer:
    first, last = list(model[:-1].parameters()), list(model[-1].parameters())
    if case.optimizer == "sgd":
        groups = [{"params": first, "lr": 0.05 * lr_factor}, {"params": last, "lr": 0.02 * lr_factor}]
        return torch.optim.SGD(groups, lr=0.05 * lr_factor, momentum=0.9, weight_decay=0.01)
    # A large eps: Adam's g / |g| would otherwise turn rounding in a tiny gradient into a whole step.
    return torch.optim.AdamW([{"params": first + last}], lr=0.003 * lr_factor, weight_decay=0.1, eps=1e-3)


def loss_function(kind: str):
    def weighted(model, batch):
        x, y = batch
        return ht.Weighted(F.cross_entropy(model(x), y, reduction="sum"), len(y))

    def plain(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y, reduction=kind)

    return weighted if kind == "weighted" else plain


def train(comm, case: Case, steps: int = STEPS, callbacks=(), resume=None) -> tuple[dict, list[dict]]:
    """The Trainer's parameters and history after `steps`."""
    dtype = getattr(torch, case.dtype)
    model = make_model(dtype, 3 + comm.rank, case.sync_batchnorm)  # ranks start apart; rank 0's model must win
    if case.sync_batchnorm:
        model = ht.SyncBatchNorm.convert(model, comm)
    plan = ht.BatchPlan(GLOBAL_BATCH, comm.size, reference_batch=REFERENCE_BATCH, micro_batch=case.micro_batch)
    trainer = ht.Trainer(
        comm, model, make_optimizer(case, model), loss_function(case.loss), schedule=ht.schedules.cosine(total_epochs=10),
        callbacks=[ht.Warmup(epochs=1.5), *callbacks], clip_norm=case.clip_norm,
        loss_reduction=None if case.loss == "weighted" else case.loss, reduction=dict(case.reduction) if comm.size > 1 else None,
    )  # fmt: skip
    history = trainer.fit(ht.Loader(make_data(dtype, case.num_samples), plan, comm, seed=SEED), steps=steps, resume=resume)
    ht.replica_check(model, comm)
    return model.state_dict(), history


def reference(case: Case, steps: int = STEPS) -> dict:
    """The same in plain torch: whole batches, one mean, one step; no part of the library but the sample order."""
    dtype = getattr(torch, case.dtype)
    data, model = make_data(dtype, case.num_samples), make_model(dtype, batchnorm=case.sync_batchnorm)
    scale = GLOBAL_BATCH / REFERENCE_BATCH
    optimizer = make_optimizer(case, model)
    base = [group["lr"] for group in optimizer.param_groups]
    per_epoch = -(-case.num_samples // GLOBAL_BATCH)
    warm = 1.5 * per_epoch
    for step in range(steps):
        epoch, at = divmod(step, per_epoch)
        positions = np.arange(at * GLOBAL_BATCH, min((at + 1) * GLOBAL_BATCH, case.num_samples))
        x, y = data[torch.from_numpy(sample_order(positions, case.num_samples, SEED, epoch))]
        ramp = min(1.0, (1 + step * (scale - 1) / warm) / scale)
        decay = 1.0 if step < warm else 0.5 * (1 + np.cos(np.pi * (step - warm) / (10 * per_epoch - warm)))
        for group, lr in zip(optimizer.param_groups, base):
            group["lr"] = lr * scale * ramp * decay
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        if case.clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        optimizer.step()
    return model.state_dict()


def worst_difference(found: dict, expected: dict) -> float:
    """Largest difference over largest magnitude, per tensor; the worst tensor."""
    return max(float((found[k].double() - expected[k].double()).abs().max() / expected[k].double().abs().max()) for k in expected)
