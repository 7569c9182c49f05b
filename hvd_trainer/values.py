"""A loss (or a metric) is a sum and its weight; the mean is taken once, after everything was added. And plain numbers."""

from __future__ import annotations

import math
import numbers
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from hvd_trainer.errors import LossError

if TYPE_CHECKING:
    import torch

Number = Union[int, float, "torch.Tensor"]


@dataclass(frozen=True)
class Weighted:
    """A sum over samples (tokens, pixels) and the weight that belongs to it.

    Sums add over micro-batches and over ranks, so `sum of totals / sum of weights` is the exact mean for any split;
    a mean of means is not, as soon as two shards differ.

    Args:
        total: scalar (a number or a tensor with one element): the SUM of the values, not their mean.
        weight: number >= 0 (or such a tensor): how many samples, tokens, ... the sum covers.

    Raises:
        LossError: `total` or `weight` is a tensor with more than one element, or not a number at all.

    Example:
        >>> a, b = Weighted(10.0, 10), Weighted(6.0, 2)     # means 1.0 and 3.0
        >>> (a + b).mean                                    # not 2.0
        1.3333333333333333
        >>> Weighted(0.0, 0).mean                           # nothing seen: no mean, not an error
        nan
    """

    total: Number
    weight: Number

    def __post_init__(self) -> None:
        for name, value in (("total", self.total), ("weight", self.weight)):
            shape = getattr(value, "shape", None)
            if shape is None and not isinstance(value, (int, float)):
                raise LossError(
                    f"Weighted({name}=...) is a {type(value).__name__}",
                    "a number or a tensor with one element",
                    'return ht.Weighted(F.cross_entropy(logits, y, reduction="sum"), len(y))',
                )
            if shape is not None and math.prod(shape) != 1:  # numpy's numbers have a shape, too
                raise LossError(
                    f"Weighted({name}=...) has shape {tuple(shape)}",
                    "one element: the sum over the samples and their number",
                    'sum it first, e.g. reduction="sum"',
                )

    def __add__(self, other: Weighted) -> Weighted:
        return Weighted(self.total + other.total, self.weight + other.weight)

    def __radd__(self, other: object) -> Weighted:
        return self if other == 0 else NotImplemented  # sum([...]) begins with 0

    @property
    def mean(self) -> float:
        """`total / weight` as a float; NaN where the weight is 0."""
        weight = _plain(self.weight)
        return _plain(self.total) / weight if weight else float("nan")


def _plain(value: Number) -> float:
    """torch warns where a float is taken of a tensor that still has its graph."""
    return float(value.detach() if hasattr(value, "detach") else value)


def as_whole(value: Any) -> Optional[int]:
    """The int that a whole number of any library is; None for a truth value, a fraction and everything else.

    Example:
        >>> import numpy as np, torch
        >>> [as_whole(value) for value in (8, np.int64(8), torch.tensor(8))]
        [8, 8, 8]
        >>> [as_whole(value) for value in (True, np.True_, 8.0, np.array(8.7), torch.tensor(8.7), "8", None)]
        [None, None, None, None, None, None, None]
    """
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")):
        return None
    try:
        return operator.index(value)  # int() would cut a tensor of 8.7
    except (TypeError, ValueError, RuntimeError):
        return None


def as_number(value: Any) -> Any:
    """A real number of any library (numpy's, a Fraction) as a float; everything else as it is, for others to refuse.

    Example:
        >>> from fractions import Fraction
        >>> as_number(Fraction(1, 2)), as_number(None), as_number(True)
        (0.5, None, True)
    """
    return float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else value
