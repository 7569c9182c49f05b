"""One optimizer step as a function: micro-batches -> sums -> the mean over all ranks -> clip -> update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import torch

from hvd_trainer.data.step_batch import StepBatch
from hvd_trainer.errors import LossError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.values import Weighted

FORGOTTEN = "a forgotten return in loss_fn? Each of its branches ends with return ht.Weighted(...)"


def train_step(
    model: torch.nn.Module,
    loss_fn: Callable,
    batch: StepBatch,
    opt: DistributedOptimizer,
    autocast: Optional[torch.dtype] = None,
    scaler: Optional[GradScaler] = None,
) -> Weighted:
    """Take one step on this rank's share of a global batch.

    Args:
        model: in training mode.
        loss_fn: (model, data) -> Weighted, or a plain tensor where the optimizer knows what it means.
        batch: this rank's share, maybe without any micro-batch.
        opt: its rates are set.
        autocast: torch.bfloat16 or torch.float16 for mixed precision; None: as the model is.
        scaler: for float16.

    Raises:
        LossError: `loss_fn` returned nothing, or something that cannot be averaged.

    Returns:
        The loss over all ranks and micro-batches, before the update; the same on all ranks.
    """
    for micro in batch:
        with torch.autocast(opt.comm.device.type, dtype=autocast, enabled=autocast is not None):
            loss = loss_fn(model, micro.data)
        if loss is None:  # opt.backward(None) means "no data", which would leave this batch out without a word
            raise LossError("the loss is a NoneType", "ht.Weighted(total, weight), or a scalar tensor with loss_reduction=", FORGOTTEN)
        weight = micro.num_samples if isinstance(loss, torch.Tensor) else None
        opt.backward(loss, weight=weight, last=micro.last, scaler=scaler)
    if scaler is None:
        opt.step()
    else:
        scaler.step(opt)  # or not, where the averaged gradient overflowed: on all ranks alike
        scaler.update()
    opt.zero_grad()
    return opt.last_loss
