"""What a loss function returned, as a sum over samples and its weight; or a clear refusal."""

from __future__ import annotations

import math
from typing import Optional, Union

import torch

from hvd_trainer.errors import LossError
from hvd_trainer.values import Weighted


def as_sum(
    loss: Union[Weighted, torch.Tensor], weight: Optional[float], reduction: Optional[str]
) -> tuple[torch.Tensor, float, float]:
    """The tensor to differentiate, the factor that makes it a sum over samples, and its weight.

    Args:
        loss: a Weighted, or a plain tensor with one element.
        weight: samples behind a plain tensor; None counts a "mean" as one.
        reduction: "mean" or "sum" for plain tensors, None where they are not allowed.

    Raises:
        LossError: another type or shape, no gradient, or a weight that is negative or not finite.

    Example:
        >>> w = torch.ones((), requires_grad=True)
        >>> as_sum(w * 3, 4, "mean")[1:], as_sum(w * 3, 4, "sum")[1:]
        ((4.0, 4.0), (1.0, 4.0))
    """
    fix = 'return ht.Weighted(F.cross_entropy(logits, y, reduction="sum"), len(y))'
    if isinstance(loss, Weighted):
        total, seed, weight = loss.total, 1.0, float(loss.weight)
    elif isinstance(loss, torch.Tensor):
        if reduction is None:
            raise LossError("the loss is a plain tensor, which does not say whether it is a mean or a sum", "ht.Weighted", fix + ', or say loss_reduction="mean"')
        if weight is None and reduction == "sum":
            raise LossError('a plain loss with loss_reduction="sum" and no weight', "the number of samples", "opt.backward(loss, weight=len(y))")
        total, weight = loss, 1.0 if weight is None else float(weight)
        seed = weight if reduction == "mean" else 1.0
    else:
        raise LossError(f"the loss is a {type(loss).__name__}", "ht.Weighted(total, weight), or a scalar tensor with loss_reduction=", fix)
    if not isinstance(total, torch.Tensor) or not total.is_floating_point():
        raise LossError(f"the loss's total is a {getattr(total, 'dtype', type(total).__name__)}", "a floating-point tensor", fix)
    if total.numel() != 1:
        raise LossError(f"the loss has shape {list(total.shape)}", "one number: the sum (or mean) over the samples", fix)
    if not total.requires_grad:
        raise LossError("the loss has no gradient", "a loss that depends on the model's parameters", "look for torch.no_grad(), .detach(), .item() or frozen parameters")
    if not (math.isfinite(weight) and weight >= 0):
        raise LossError(f"the loss has weight {weight}", "a finite number >= 0", "pass the number of samples")
    return total, seed, weight
