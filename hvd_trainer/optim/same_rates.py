"""The ranks' learning rates must be equal: a scheduler that watches one rank's own loss lets the replicas drift apart silently."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import CollectiveError
from hvd_trainer.optim.rates import get_rate


class SameRates:
    """One number that stands for this rank's rates travels with the gradients; of equal ranks the sum is `size` times it.

    The number has 32 bits, so that a sum over ranks is exact. Where rates differ, the rank with the largest number notices in any
    case, and the others unless theirs is the mean of all by chance.

    Args:
        optimizer: its groups are looked at in every step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._rates: list[float] = []
        self._number = 0.0

    def number(self) -> float:
        """What this rank reports."""
        rates = []
        for group in self._optimizer.param_groups:
            rate = group["lr"]
            rates.append(rate if type(rate) is float else _without_waiting(rate))
        if rates != self._rates:
            self._rates, self._number = rates, number_of(rates)
        return self._number

    def check(self, total: float, comm: Communicator, name: str) -> None:
        """Raise where the ranks reported different numbers.

        Args:
            total: the sum over all ranks of what `number` returned last.
            comm: the ranks.
            name: of the collective that finds out which rates they have.

        Raises:
            CollectiveError: the rates differ; on all ranks.
        """
        if total == comm.size * self._number:
            return
        everyone = comm.gather_objects([get_rate(group) for group in self._optimizer.param_groups], f"{name}.rates")
        held: dict[str, list[int]] = {}
        for rank, rates in enumerate(everyone):
            held.setdefault(", ".join(map(repr, rates)), []).append(rank)
        shown = "; ".join(f"{rates} on rank {', '.join(map(str, ranks))}" for rates, ranks in held.items())
        raise CollectiveError(
            f"the ranks' learning rates differ at {comm.where}: {shown}; no parameter was changed",
            "the same rates on every rank, or replicas drift apart",
            "let a scheduler see what is the same on all ranks, such as opt.last_loss.mean or a metric of ht.Evaluate, and no rank's own loss",
        )


def number_of(rates: list[float]) -> float:
    """A whole number below 2**32 that depends on all rates.

    Example:
        >>> number_of([0.1, 0.2]) == number_of([0.1, 0.2]), number_of([0.1, 0.2]) == number_of([0.2, 0.1]), number_of([])
        (True, False, 0.0)
    """
    return float(zlib.crc32(struct.pack(f"{len(rates)}d", *rates)))


def _without_waiting(rate: Any) -> float:
    """A rate on a GPU is not looked at: reading it would make this rank wait for the GPU in every step."""
    return 0.0 if isinstance(rate, torch.Tensor) and not rate.is_cpu else float(rate)
