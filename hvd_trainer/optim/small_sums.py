"""Sums of small models through memory of the node: every rank adds up everything by itself, and waits for the others once.

For a model of a few hundred KB a wait costs as much as the arithmetic. Here the numbers that travel with a step are written
before its last bucket is announced, and each rank then reads all ranks' gradients and makes the same sum, in rank order: no
second wait for shares, none for an update. Two sets of buffers in turn let a rank begin the next step while another still
reads this one: it cannot come to the step after that before the other has announced the next.
"""

from __future__ import annotations

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.node_memory import NodeMemory
from hvd_trainer.optim.at_once import NUM_NUMBERS, AtOnce
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.shared_sums import Exchange
from hvd_trainer.optim.ways import Numbers, Sums, all_finite

MOST_BYTES = 1 << 20  # of the gradients of all ranks of the node together


def is_small(buckets: list[Bucket], local_size: int) -> bool:
    """Whether reading every rank's gradients is cheaper than waiting twice more."""
    plain = all(bucket.dtype.itemsize >= 4 for bucket in buckets)
    return plain and local_size * sum(bucket.nbytes for bucket in buckets) <= MOST_BYTES


class SmallSums(AtOnce):
    """See the module; the interface of `ways.Messages`.

    Args:
        memory: carved first by this.
        buckets: the same on all ranks.
        comm: all ranks are on this node.
        num_params: flags are exchanged for each.
    """

    text = "shared memory"

    def __init__(self, memory: NodeMemory, buckets: list[Bucket], comm: Communicator, num_params: int) -> None:
        super().__init__(buckets)
        size, self._rank = comm.local_size, comm.local_rank
        self.memory, self._size = memory, size
        numbers = memory.tensor(2 * size * NUM_NUMBERS, torch.float64)
        self._exchange = Exchange(memory, comm, 2 * num_params)
        every = [[[memory.tensor(b.numel, b.dtype) for b in buckets] for _ in range(size)] for _ in range(2)]
        self.flat_sets = [both[self._rank] for both in every]
        self._numbers = memoryview(numbers.numpy())
        self._parts = [[[every[turn][r][number] for r in range(size)] for number in range(len(buckets))] for turn in range(2)]
        self._step = 0

    def finish(self, numbers: Numbers) -> Sums:
        turn, size = self._step & 1, self._size
        start, cells = turn * size * NUM_NUMBERS, self._numbers
        self._write(numbers, cells, start + self._rank * NUM_NUMBERS)
        self._step += 1
        self.memory.post(0, self._step)
        self.memory.wait(0, self._step, "the gradients")
        ranks = range(start, start + size * NUM_NUMBERS, NUM_NUMBERS)
        sums = list(map(sum, zip(*[cells[at : at + NUM_NUMBERS] for at in ranks])))
        factor = self._factor(sums)
        for result, parts in zip(self.results, self._parts[turn]):
            torch.add(parts[0], parts[1], out=result)
            for part in parts[2:]:
                result.add_(part)
            if factor != 1.0:
                result.mul_(factor)
        return self._sums(sums)

    def exchange(self, numbers: list[float], what: str) -> list[float]:
        return self._exchange.sums(numbers, what)

    @property
    def was_finite(self) -> bool:
        """Whether this rank's own gradients of the last step were; looked at only to explain an error."""
        return all_finite(self.flat_sets[(self._step - 1) & 1])


def piece_bytes(buckets: list[Bucket], local_size: int, num_params: int) -> list[int]:
    """Sizes of the pieces that a `SmallSums` carves, in its order."""
    sizes = [bucket.nbytes for bucket in buckets]
    return [8 * 2 * local_size * NUM_NUMBERS, Exchange.piece_bytes(local_size, 2 * num_params)] + sizes * (2 * local_size)
