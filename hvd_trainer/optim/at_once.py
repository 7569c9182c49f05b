"""What the ways of small models have in common: nothing is sent before the step's end, and then the gradients of all buckets
together with the numbers of the step.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence

import torch

from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.ways import Numbers, Sums, chunks_of, mean_factor

NUM_NUMBERS = 8


class AtOnce:
    """See the module; with `finish` and `flat_sets` it has the interface of `ways.Messages`.

    Args:
        buckets: the same on all ranks.
    """

    results_are_own = True
    sends_early = False
    moved: frozenset[int] = frozenset()

    def __init__(self, buckets: list[Bucket]) -> None:
        self.results = [torch.zeros(b.numel, dtype=b.dtype) for b in buckets]
        self._weight = self._plain = 0.0
        self._nominal = 1.0

    def announce(self, weight: float, plain: float, nominal: float) -> None:
        self._weight, self._plain, self._nominal = weight, plain, nominal

    def send(self, number: int) -> None:
        """Nothing: all buckets are sent together, in `finish`."""

    def discard(self) -> None:
        """Nothing is under way before `finish`."""

    def takes(self, number: int) -> bool:
        """No: gradients must be where they are sent from."""
        return False

    def my_chunks(self, number: int) -> list[torch.Tensor]:
        """All of a bucket's result, in pieces that fit into a core's cache."""
        return chunks_of(self.results[number])

    def my_slice(self, number: int) -> tuple[int, int]:
        """All of it."""
        return 0, self.results[number].numel()

    def _write(self, numbers: Numbers, cells: MutableSequence[float], at: int) -> None:
        """This rank's numbers, in the order in which `_sums` takes them."""
        cells[at] = numbers.total
        cells[at + 1] = numbers.ours
        cells[at + 2] = numbers.irregular
        cells[at + 3] = numbers.aside
        cells[at + 4] = numbers.changed
        cells[at + 5] = numbers.rates
        cells[at + 6] = self._weight
        cells[at + 7] = self._plain

    def _factor(self, sums: Sequence[float]) -> float:
        """What makes means of sums."""
        return mean_factor(sums[6], sums[7], self._nominal)

    def _sums(self, sums: Sequence[float]) -> Sums:
        """`results` hold the means: NaN and infinity have survived there."""
        check = 0.0
        for result in self.results:
            check += result.sum().item()
        return Sums(*sums, 0.0 if math.isfinite(check) else 1.0)
