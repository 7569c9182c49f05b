"""The sums of buckets through memory that the ranks of one node share: each rank sums its share, and all read the result.

Nothing is sent. Every rank's gradients lie in shared memory; when all ranks have finished a bucket, each adds up its slice
of it, in rank order, while that is in cache, multiplies it by what makes the mean, and notes whether it was finite.
Three things order the ranks, all by counters (`comm.node_memory`):
- READY: buckets that a rank has finished, over all steps; nobody reads a slice before its owner's counter says so;
- TURN: exchanges of numbers; the one in `finish` also says that a rank's slices are summed;
- UPDATED: updates of shares done (`flat_update`).
"""

from __future__ import annotations

import math
from typing import Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.half_floats import add_up
from hvd_trainer.comm.node_memory import NodeMemory
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.ways import CHUNK_BYTES, Numbers, Sums, all_finite, mean_factor

READY, TURN, UPDATED = range(3)
NUM_COUNTERS = 3
SLICE_ALIGN = 16  # elements: slices of two ranks do not meet in a cache line
NUM_NUMBERS = 9  # exchanged in every step, at most (`node_sums`)
WEIGHTS = 2  # announced in every step: weight and plain
# A backward of up to so many bytes of gradients is not interrupted for copies and sums: they take its data out of the cache, and
# nothing would go on beside it. Of larger ones, gradients of their own and the buckets would be there at the same time.
LATE_BYTES = 8 << 20


def piece_bytes(buckets: list[Bucket], local_size: int, num_params: int) -> list[int]:
    """Sizes of the pieces that a `SharedSums` carves, in its order."""
    sizes = [bucket.nbytes for bucket in buckets]
    width = max(NUM_NUMBERS, 2 * num_params)
    return [8 * WEIGHTS * local_size, Exchange.piece_bytes(local_size, width)] + sizes * (local_size + 1)


def my_slice(numel: int, local_rank: int, num_shares: int) -> tuple[int, int]:
    """Where a rank's share of a bucket begins and ends; ranks beyond the number of shares have an empty one.

    Example:
        >>> my_slice(100, 0, 2), my_slice(100, 1, 2), my_slice(3, 1, 2), my_slice(100, 2, 2)
        ((0, 64), (64, 100), (3, 3), (100, 100))
    """
    lines = -(-numel // SLICE_ALIGN)
    first, last = (-(-lines * rank // num_shares) * SLICE_ALIGN for rank in (local_rank, local_rank + 1))
    return min(first, numel), min(last, numel)


class Exchange:
    """Sums of a few numbers over the ranks of a node, in rank order.

    Args:
        memory: shared; a piece is carved.
        comm: the ranks.
        width: most numbers at a time.
    """

    def __init__(self, memory: NodeMemory, comm: Communicator, width: int) -> None:
        self._memory, self._size, self._rank, self._width = memory, comm.local_size, comm.local_rank, width
        self._rows = memoryview(memory.tensor(2 * comm.local_size * width, torch.float64).numpy())
        self._turn = 0

    @staticmethod
    def piece_bytes(local_size: int, width: int) -> int:
        """Size of the piece that is carved."""
        return 8 * 2 * local_size * width

    def sums(self, numbers: list[float], what: str) -> list[float]:
        """The sums over the ranks; as many numbers on every rank."""
        self._turn += 1
        # Two rows in turn: a rank may write the next exchange's while another still reads this one's.
        start = (self._turn & 1) * self._size * self._width
        rows, width = self._rows, self._width
        at = start + self._rank * width
        for k, number in enumerate(numbers):
            rows[at + k] = number
        self._memory.post(TURN, self._turn)
        self._memory.wait(TURN, self._turn, what)
        return [sum(rows[start + k : start + self._size * width : width]) for k in range(len(numbers))]


class SharedSums:
    """See the module; the interface of `ways.Messages`.

    Args:
        memory: carved first by this.
        buckets: the same on all ranks.
        comm: all ranks are on this node.
        num_params: flags are exchanged for each.
        num_shares: into how many slices a bucket is cut, the first ranks' each; one for each rank of the node if not given.
    """

    text = "shared memory"
    results_are_own = False
    moved: frozenset[int] = frozenset()

    def __init__(
        self, memory: NodeMemory, buckets: list[Bucket], comm: Communicator, num_params: int, num_shares: Optional[int] = None
    ) -> None:
        size, rank = comm.local_size, comm.local_rank
        self.memory, self._comm = memory, comm
        self.sends_early = sum(bucket.nbytes for bucket in buckets) > LATE_BYTES
        self.num_shares = num_shares or size
        weights = memory.tensor(WEIGHTS * size, torch.float64)
        self._exchange = Exchange(memory, comm, max(NUM_NUMBERS, 2 * num_params))
        every = [[memory.tensor(b.numel, b.dtype) for b in buckets] for _ in range(size)]
        self.flat_sets = [every[rank]]
        self.results = [memory.tensor(b.numel, b.dtype) for b in buckets]
        self._slices = [my_slice(b.numel, rank, self.num_shares) for b in buckets]
        self._weights = memoryview(weights.numpy())
        self._chunks = [self._cut(number, every) for number in range(len(buckets))]
        self._start = 0  # READY before this step
        self._num_sent = self._num_summed = 0
        self._sums_early = True  # as soon as all ranks have sent a bucket
        self._nominal = 1.0
        self._factor: Optional[float] = None  # known from the first bucket on that is complete on all ranks
        self._check = 0.0
        # Whether the check adds up squares, for a norm, instead of values; changed by `finish` only, in the same step on all ranks.
        self.squares = self.wants_squares = False
        self._has_squares = False  # of the last step
        self._updates = 0

    def announce(self, weight: float, plain: float, nominal: float) -> None:
        at = WEIGHTS * self._comm.local_rank
        self._weights[at], self._weights[at + 1], self._nominal = weight, plain, nominal

    def send(self, number: int) -> None:
        self._num_sent = number + 1
        self.memory.post(READY, self._start + number + 1)
        # What the others have finished too is added up now, while it is in cache; nobody is waited for.
        while self._sums_early and self._num_summed <= number and self.memory.reached(READY, self._start + self._num_summed + 1):
            self._sum_next()

    def finish(self, numbers: Numbers) -> Sums:
        for number in range(self._num_summed, self._num_sent):
            self.memory.wait(READY, self._start + number + 1, f"bucket {number}")
            self._sum_next()
        weight, plain = self._announced()
        self._start += self._num_sent
        check, self._check, self._factor = self._check, 0.0, None
        self._num_sent = self._num_summed = 0
        *sums, self.check = self.exchange([*numbers.listed(), check], "the numbers")
        self._has_squares, self.squares = self.squares, self.wants_squares
        return Sums(*sums, weight, plain, 0.0 if math.isfinite(self.check) else 1.0)

    def takes(self, number: int) -> bool:
        """No: gradients must be where the other ranks look for them."""
        return False

    def exchange(self, numbers: list[float], what: str) -> list[float]:
        return self._exchange.sums(numbers, what)

    def over_shares(self, numbers: list[float], what: str) -> list[float]:
        """The sums over the ranks that hold the shares of the parameters, of numbers about these; the same on every node."""
        return self._exchange.sums(numbers, what)

    def sum_of_squares(self) -> float:
        """Of the last step's means, the same on all ranks; a collective where the check was not of squares."""
        if self._has_squares:
            return self.check
        mine = sum(_dot(chunk) for number in range(len(self.results)) for chunk in self.my_chunks(number))
        return self.over_shares([mine], "the norm")[0]

    def updated(self) -> None:
        """Return when all ranks have come here: what they wrote before, everybody sees."""
        self._updates += 1
        self.memory.post(UPDATED, self._updates)
        self.memory.wait(UPDATED, self._updates, "the update")

    def discard(self) -> None:
        if self._num_sent:
            self._start += len(self.results)
            self.memory.post(READY, self._start)
            self._num_sent = self._num_summed = 0
            self._check, self._factor = 0.0, None

    @property
    def was_finite(self) -> bool:
        """Whether this rank's own gradients of the last step were; looked at only to explain an error."""
        return all_finite(self.flat_sets[0])

    def my_chunks(self, number: int) -> list[torch.Tensor]:
        """This rank's share of a bucket's result, in pieces that fit into the cache."""
        return [result for result, _ in self._chunks[number]]

    def my_slice(self, number: int) -> tuple[int, int]:
        """Where this rank's share of a bucket begins and ends."""
        return self._slices[number]

    def _announced(self) -> tuple[float, float]:
        every = self._weights
        return sum(every[::WEIGHTS]), sum(every[1::WEIGHTS])

    def _sum_next(self) -> None:
        if self._factor is None:
            self._factor = mean_factor(*self._announced(), self._nominal)
        for result, parts in self._chunks[self._num_summed]:
            total = add_up(parts, result if result.element_size() >= 4 else torch.empty(result.shape, dtype=torch.float32))
            if self._factor != 1.0:
                total.mul_(self._factor)
            if total is not result:
                result.copy_(total)
            self._check += self._checked(result)
        self._num_summed += 1

    def _checked(self, result: torch.Tensor) -> float:
        """A number that is finite where all elements are, and, with `squares`, their sum of squares."""
        if self.squares:
            return _dot(result)
        return (result.float() if result.element_size() < 4 else result).sum().item()

    def _cut(self, number: int, every: list[list[torch.Tensor]]) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        first, last = self._slices[number]
        step = max(1, CHUNK_BYTES // self.results[number].element_size())
        return [
            (self.results[number][at : min(at + step, last)], [flats[number][at : min(at + step, last)] for flats in every])
            for at in range(first, last, step)
        ]


def _dot(flat: torch.Tensor) -> float:
    wide = flat.float() if flat.element_size() < 4 else flat
    return torch.dot(wide, wide).item()
