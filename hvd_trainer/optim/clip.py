"""Clipping, always of the averaged gradient (clipping before averaging gives another direction)."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from hvd_trainer.errors import ConfigError


def check_limit(name: str, limit: float | None) -> None:
    """Raise ConfigError unless `limit` is None or a number > 0."""
    if limit is not None and not (isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit > 0):
        raise ConfigError(f"{name}={limit!r}", "a number > 0, or None for no clipping", f"pass {name}=1.0 or leave it out")


def clip_norm_(params: Iterable[torch.Tensor], max_norm: float) -> float:
    """Scale the gradients, in place, so that their joint 2-norm is at most `max_norm`.

    Args:
        params: those with `grad = None` are passed over.
        max_norm: > 0.

    Returns:
        The norm before clipping, 0.0 where there is no gradient.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(2)); w.grad = torch.tensor([3.0, 4.0])
        >>> clip_norm_([w], 1.0), [round(x, 4) for x in w.grad.tolist()]
        (5.0, [0.6, 0.8])
    """
    return float(torch.nn.utils.clip_grad_norm_(list(params), max_norm))


def clip_value_(params: Iterable[torch.Tensor], max_value: float) -> None:
    """Clamp every component of the gradients, in place, to [-max_value, max_value]; real and imaginary parts alike."""
    with torch.no_grad():
        for grad in [param.grad for param in params if param.grad is not None]:
            (torch.view_as_real(grad) if grad.is_complex() else grad).clamp_(-max_value, max_value)
