"""One optimizer step as a function: micro-batches -> sums -> the mean over all ranks -> clip -> update."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hvd_trainer.data.loader import StepBatch
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.values import Weighted


def train_step(model: torch.nn.Module, loss_fn: Callable, batch: StepBatch, opt: DistributedOptimizer) -> Weighted:
    """Take one step on this rank's share of a global batch.

    Args:
        model: in training mode.
        loss_fn: (model, data) -> Weighted, or a plain tensor where the optimizer knows what it means.
        batch: this rank's share, maybe without any micro-batch.
        opt: its rates are set.

    Returns:
        The loss over all ranks and micro-batches, before the update; the same on all ranks.
    """
    for micro in batch:
        loss = loss_fn(model, micro.data)
        weight = micro.num_samples if isinstance(loss, torch.Tensor) else None
        opt.backward(loss, weight=weight, last=micro.last)
    opt.step()
    opt.zero_grad()
    return opt.last_loss
