"""The loss of a workload as these libraries want it: a mean."""

from __future__ import annotations

import torch

from hvd_trainer.values import Weighted


def mean(loss: Weighted | torch.Tensor) -> torch.Tensor:
    """A plain scalar."""
    return loss.total / loss.weight if isinstance(loss, Weighted) else loss


def total(loss: Weighted | torch.Tensor) -> torch.Tensor:
    """What the other columns report, so that the losses can be compared."""
    return loss.total if isinstance(loss, Weighted) else loss
