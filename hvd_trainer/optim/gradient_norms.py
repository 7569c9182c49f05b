"""What a step tells about the noise of its gradient: squared norms of local and of averaged gradients, by param group.

In data parallel these are nearly free: every rank has a mean gradient of its own before the sum. Whoever wants them is a
`NormsObserver`, and gets one `GradientNorms` a step, the same numbers on all ranks. The optimizer collects them while it
reduces; `NormsCollector` is the same thing in the open, for loops of one's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional, Protocol, Union, runtime_checkable

import torch

from hvd_trainer.comm.api import Communicator

CHUNK = 65536


@dataclass(frozen=True)
class GradientNorms:
    """One step's squared norms, reduced over ranks: the same on all of them.

    With parts i (micro-batches or whole rank batches) of weight w_i (samples, tokens) and mean gradient g_i, W = sum w_i:

    Args:
        local_sq: sum of w_i / W |g_i|^2, for each param group.
        mean_sq: |sum of w_i / W g_i|^2 = |averaged gradient|^2 before clipping, for each param group.
        weight: W > 0.
        num_parts: how many parts had weight; with 1 there is nothing to compare.
    """

    local_sq: tuple[float, ...]
    mean_sq: tuple[float, ...]
    weight: float
    num_parts: int

    @property
    def is_finite(self) -> bool:
        """Whether no gradient overflowed (float16 with a scaler: the step is skipped)."""
        return all(math.isfinite(value) for value in (*self.local_sq, *self.mean_sq))


@runtime_checkable
class NormsObserver(Protocol):
    """Whoever wants gradient norms. Both methods are called on all ranks, and must not differ between them."""

    def wants_norms(self, step: int) -> bool:
        """Asked before the backward of step `step` (from 1): whether to take its norms."""
        ...

    def observe(self, norms: GradientNorms) -> None:
        """Called after the averaging, before clipping and the update of that step."""
        ...


class NormsCollector:
    """Collects one step's norms from gradients in the open; one small allreduce.

    What is added must be what enters the sum: after compression, if there is any, with loss scales and the division by
    the number of micro-batches undone. Not for Adasum, whose result is no mean.

    Args:
        num_groups: param groups, >= 1.
        comm: the ranks; each must call `finish` once a step, with or without parts of its own.

    Example:
        >>> from hvd_trainer.comm.single import SingleCommunicator
        >>> collector = NormsCollector(1, SingleCommunicator())
        >>> collector.add([[torch.tensor([1.0, 0.0])]], weight=1)           # two micro-batches of 1 and 3 samples
        >>> collector.add([[torch.tensor([0.0, 2.0])]], weight=3)
        >>> collector.finish([[torch.tensor([0.25, 1.5])]])
        GradientNorms(local_sq=(3.25,), mean_sq=(2.3125,), weight=4.0, num_parts=2)
    """

    def __init__(self, num_groups: int, comm: Communicator) -> None:
        self._comm, self._name = comm, comm.unique_name("gradient_norms")
        self._num_groups = num_groups
        self._clear()

    def _clear(self) -> None:
        self._sums = torch.zeros(self._num_groups + 2, dtype=torch.float64, device=self._comm.device)

    def add(self, groups: Sequence[Iterable[Optional[torch.Tensor]]], weight: float) -> None:
        """One part: its mean gradient, the tensors of each param group (None where there is none), and its weight >= 0."""
        if weight > 0:
            squares = [weight * squared_norm(tensors, self._comm.device) for tensors in groups]
            self._sums += torch.stack([*squares, *self._sums.new_tensor([weight, 1.0])])

    def finish(self, groups: Sequence[Iterable[Optional[torch.Tensor]]]) -> GradientNorms:
        """All parts are in; `groups` has the averaged gradient. Talks to the other ranks."""
        *weighted, weight, num_parts = self._comm.allreduce_(self._sums, self._name).wait().tolist()
        self._clear()
        mean_sq = torch.stack([squared_norm(tensors, self._comm.device) for tensors in groups]).tolist()
        local_sq = tuple(value / weight if weight else math.nan for value in weighted)
        return GradientNorms(local_sq, tuple(mean_sq), weight, int(num_parts))


def squared_norm(tensors: Iterable[Optional[torch.Tensor]], device: Optional[torch.device] = None) -> torch.Tensor:
    """The sum of squares over all tensors, a float64 scalar; see `squares`."""
    found: Union[float, torch.Tensor] = 0.0
    for tensor in tensors:
        if tensor is not None:
            found = found + squares(tensor)
    return torch.as_tensor(found, dtype=torch.float64, device=device)


def squares(tensor: torch.Tensor) -> Union[float, torch.Tensor]:
    """The sum of squares of a tensor: a float on a CPU, elsewhere a float64 scalar that was not waited for.

    The noise is a small difference of two large sums, so they must be right to many digits. On a CPU torch's norm of 10^7
    float32 numbers is off by 7e-4, and summing in float64 is 15 times slower; dot products of 64k numbers, added in
    float64, are right to 1e-7 at the speed of a plain sum.
    """
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).detach().reshape(-1)
    if not flat.is_cpu:
        return torch.linalg.vector_norm(flat, dtype=torch.float64).square()
    flat = flat.float() if flat.element_size() < 4 else flat
    if flat.numel() <= CHUNK:
        return torch.dot(flat, flat).item()
    return math.fsum(torch.dot(part, part).item() for part in flat.split(CHUNK))
