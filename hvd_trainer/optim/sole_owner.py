"""Whether nobody but its parameter holds a gradient, or the memory that it lies in: then it may be taken without a copy."""

from __future__ import annotations

import sys
from functools import cache

import torch

from hvd_trainer.optim.layout import is_dense


def references(param: torch.nn.Parameter) -> int:
    """How many hold the parameter's gradient, as Python counts."""
    return sys.getrefcount(param.grad)


@cache
def references_of_a_lonely_one() -> int:
    """What `references` says where nobody but the parameter holds its gradient: other numbers with other versions of torch."""
    found: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.nn.Parameter(torch.ones(1, device="cpu"))
        weight.register_post_accumulate_grad_hook(lambda param: found.append(references(param)))
        (2 * weight).sum().backward()
    return found[0]


def is_alone(grad: torch.Tensor) -> bool:
    """Whether nobody else can hold this dense gradient's memory: it is no part of a graph, and its storage has no other tensor.

    Example:
        >>> whole = torch.zeros(4)
        >>> is_alone(whole), is_alone(whole.view(2, 2)), is_alone(whole[1:])
        (True, False, False)
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None or grad.is_complex() or grad.requires_grad or not is_dense(grad):
        return False
    storage = grad.untyped_storage()
    return storage.nbytes() == grad.nbytes and count(storage._cdata) == 2  # the gradient, and `storage` here
