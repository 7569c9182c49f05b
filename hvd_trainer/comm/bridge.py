"""What joins the nodes where ranks of one node share memory: each carries its part of a sum to its peers on the others."""

from __future__ import annotations

import abc
from collections.abc import Sequence

import torch


class Bridge(abc.ABC):
    """The ranks at one local rank, one of every node, in the order of the nodes. Abstract; an engine has its own.

    All of them call the same methods in the same order; nobody else takes part.
    """

    @abc.abstractmethod
    def sum_(self, tensor: torch.Tensor, name: str) -> None:
        """Add up a contiguous, one-dimensional tensor over the nodes, in place; the result is the same bits on all.

        Args:
            tensor: float32 or float64; 16-bit floats travel as 16 bits, are added in float32 and rounded once.
            name: for messages.
        """

    @abc.abstractmethod
    def gather(self, numbers: Sequence[float], name: str) -> list[list[float]]:
        """Every node's numbers, as many on each, in the order of the nodes."""
