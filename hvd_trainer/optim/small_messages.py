"""Sums of small models by one message a step: all gradients and the numbers of the step, as float64.

A message of a few KB costs what starting it costs, under Horovod up to a cycle of its own. The numbers want 53 bits and the
gradients of a small model are cheap to widen, so both travel in one vector, and sums are rounded to the gradients' dtype once.
"""

from __future__ import annotations

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.optim.at_once import NUM_NUMBERS, AtOnce
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.ways import Numbers, Sums, all_finite, send_numbers

# Of all gradients. Two messages, and one: with Horovod over Gloo 2.20 and 1.76 ms for 104 KB, 3.0 and 2.6 for 262 KB; with its best
# settings 0.36 and 0.34 for 104 KB, but 0.39 and 0.42 for 262 KB (2 ranks on 2 cores).
MOST_BYTES = 160 * 1024


def is_small(buckets: list[Bucket], num_ranks: int) -> bool:
    """Whether widening the gradients costs less than a second message."""
    plain = all(bucket.dtype.itemsize >= 4 and bucket.device.type == "cpu" for bucket in buckets)
    return plain and num_ranks > 1 and sum(bucket.nbytes for bucket in buckets) <= MOST_BYTES


class SmallMessages(AtOnce):
    """See the module; the interface of `ways.Messages`.

    Args:
        buckets: the same on all ranks.
        comm: the ranks.
        name: prefix of the collectives' names.
    """

    text = "messages"

    def __init__(self, buckets: list[Bucket], comm: Communicator, name: str) -> None:
        super().__init__(buckets)
        self._comm, self._name = comm, name
        self.flat_sets = [[torch.zeros_like(result) for result in self.results]]
        sizes = [bucket.numel for bucket in buckets]
        self._wire = torch.zeros(sum(sizes) + NUM_NUMBERS, dtype=torch.float64)
        *self._parts, tail = self._wire.split([*sizes, NUM_NUMBERS])
        self._numbers = memoryview(tail.numpy())

    def finish(self, numbers: Numbers) -> Sums:
        """Send, wait; `results` then hold the means."""
        self._write(numbers, self._numbers, 0)
        torch._foreach_copy_(self._parts, self.flat_sets[0])
        self._comm.allreduce_(self._wire, f"{self._name}.gradients").wait()
        sums = self._numbers.tolist()
        factor = self._factor(sums)
        if factor != 1.0:
            torch._foreach_mul_(self._parts, factor)
        torch._foreach_copy_(self.results, self._parts)
        return self._sums(sums)

    def exchange(self, numbers: list[float], what: str) -> list[float]:
        """The sums over all ranks of further numbers, as many on every rank."""
        return send_numbers(self._comm, numbers, f"{self._name}.{what}").wait().tolist()

    @property
    def was_finite(self) -> bool:
        """Whether this rank's own gradients of the last step were; looked at only to explain an error."""
        return all_finite(self.flat_sets[0])
