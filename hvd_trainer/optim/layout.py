"""Pure: how a tensor's elements lie in memory, and views of a flat buffer that lie the same way."""

from __future__ import annotations

import torch

SAME_SIZE_INT = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element: to look at bits


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one stretch of memory without a hole or an overlap, in whatever order.

    Example:
        >>> is_dense(torch.zeros(2, 3).t()), is_dense(torch.zeros(4)[::2])
        (True, False)
    """
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def view_like(flat: torch.Tensor, offset: int, numel: int, param: torch.Tensor) -> torch.Tensor:
    """A parameter's place in a flat buffer, in its shape and, where it is dense, its strides.

    Args:
        flat: of the parameter's dtype, or of pairs of reals for a complex one.
        offset, numel: the place, in elements of `flat`.
        param: whose shape and strides are taken.

    Example:
        >>> view_like(torch.arange(8.0), 1, 6, torch.zeros(2, 3).t()).tolist()
        [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]]
    """
    part = flat[offset : offset + numel]
    if param.is_complex():
        return torch.view_as_complex(part.view(*param.shape, 2))
    if is_dense(param):
        return part.as_strided(param.shape, param.stride(), part.storage_offset())
    return part.view(param.shape)


def flattened_like(value: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor of the parameter's shape, in the order of the parameter's memory.

    Example:
        >>> flattened_like(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2, 2).t()).tolist()
        [1.0, 3.0, 2.0, 4.0]
    """
    own = torch.empty_strided(param.shape, param.stride(), dtype=value.dtype)
    own.copy_(value)
    return own.as_strided((param.numel(),), (1,))
