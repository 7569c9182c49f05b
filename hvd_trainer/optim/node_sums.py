"""The sums of buckets over several nodes: through shared memory inside each, by messages between them.

The first ranks of each node, as many as the smallest node has, carry: of every bucket each adds up its slice over the ranks of
its node, as in `shared_sums`, and then over the nodes, with its peers at the same local rank. So a gradient crosses the network
once a node and not once a rank, and all carriers of a node send at the same time.

Inside a node sums go in rank order; between nodes numbers go in the order of the nodes, and so do gradients of two nodes and those
that are added in shares (others in the order of the engine's allreduce). Nothing travels before `finish`: a rank that waited for another node in the middle of its
backward could wait for one that waits for it somewhere else, in a collective of the user's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.half_floats import add_up
from hvd_trainer.comm.node_memory import NodeMemory
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.shared_sums import SharedSums
from hvd_trainer.optim.ways import COMPRESSIONS, Numbers, Sums, is_undivided, mean_factor

# Of what travels at a time. 16 MB of gradients, 2 hosts of 2 ranks over 1 Gbit/s: in messages of 128 KB 938 ms a step, 1 MB 420,
# 2 MB 368, 4 MB 366, whole 341; one MPI_Iallreduce a bucket, started before the last one is waited for, was no faster.
CARRY_BYTES = 4 << 20


@dataclass(frozen=True)
class Load:
    """What travels in one message: this rank's slices of the buckets `first` .. `last - 1`."""

    first: int
    last: int
    flat: torch.Tensor


def dtype_between(dtype: torch.dtype, narrow: Optional[torch.dtype] = None) -> torch.dtype:
    """As what gradients of a dtype travel: with 32 bits or more; where that is asked for, with 16.

    Example:
        >>> dtype_between(torch.float16), dtype_between(torch.float16, torch.bfloat16), dtype_between(torch.float64, torch.bfloat16)
        (torch.float32, torch.float16, torch.bfloat16)
    """
    if dtype.itemsize == 2:
        return torch.float32 if narrow is None else dtype
    return narrow or dtype


def plan_loads(buckets: Sequence[Bucket], lengths: Sequence[int], narrow: Optional[torch.dtype] = None) -> list[Load]:
    """Slices of these lengths in messages of `CARRY_BYTES` at least, where so many follow that have the same dtype.

    Args:
        buckets: in order.
        lengths: of this rank's slice of each, in elements.
        narrow: of 16 bits, to travel in.

    Example:
        >>> bucket = Bucket(torch.float32, torch.device("cpu"), ())
        >>> [(load.first, load.last) for load in plan_loads([bucket] * 5, [400_000] * 5)]
        [(0, 3), (3, 5)]
        >>> [(load.first, load.last) for load in plan_loads([bucket] * 5, [400_000] * 5, torch.bfloat16)]
        [(0, 5)]
    """
    dtypes = [dtype_between(bucket.dtype, narrow) for bucket in buckets]
    loads, first, total = [], 0, 0
    for number, length in enumerate(lengths):
        total += length
        is_last = number + 1 == len(lengths) or dtypes[number + 1] is not dtypes[number]
        if is_last or total * dtypes[number].itemsize >= CARRY_BYTES:
            loads.append(Load(first, number + 1, torch.empty(total, dtype=dtypes[number])))
            first, total = number + 1, 0
    return loads


class NodeSums(SharedSums):
    """See the module; the interface of `ways.Messages`.

    Args:
        memory: of this node; carved first by this.
        buckets: the same on all ranks.
        comm: its engine has bridges.
        num_params: flags are exchanged for each.
        sizes: ranks of each node.
        name: prefix of the messages' names.
        compression: "bf16" or "fp16": each node's sum is rounded to it, and the sum of these once more; 16-bit gradients then
            travel as they are.
    """

    def __init__(
        self,
        memory: NodeMemory,
        buckets: list[Bucket],
        comm: Communicator,
        num_params: int,
        sizes: Sequence[int],
        name: str,
        compression: Optional[str] = None,
    ) -> None:
        num_carriers = min(sizes)
        super().__init__(memory, buckets, comm, num_params, num_carriers)
        kind = f"{compression} messages" if compression else "messages"
        self.text = f"shared memory of each node and {kind} between them ({shown(sizes)})"
        self._bridge, self._name = comm.bridge(num_carriers), name
        self._all_carry = comm.local_size == num_carriers
        self._is_first = comm.local_rank == 0
        # This rank's slice of each bucket, as it travels.
        self._loads = plan_loads(buckets, [last - first for first, last in self._slices], COMPRESSIONS.get(compression))
        self._wires: list[torch.Tensor] = []
        for load in self._loads:
            self._wires += load.flat.split([last - first for first, last in self._slices[load.first : load.last]])
        self._pieces = [self._cut_wire(number) for number in range(len(buckets))]
        longest = max((len(wire) for pieces in self._pieces for wire, *_ in pieces), default=0)
        self._wide = torch.empty(longest) if any(wire.itemsize == 2 for wire in self._wires) else torch.empty(0)
        self._before = 1.0  # what 16 bits are multiplied by before they are rounded
        # That depends on all ranks of the node, which have said so only when all have sent everything.
        self._sums_early = not self._wide.numel()

    def finish(self, numbers: Numbers) -> Sums:
        local = self._exchange.sums(numbers.listed(), "the gradients")  # all ranks of the node have sent all they have
        weight, plain = self._announced()
        sums = self._over_nodes([*local, weight, plain], "numbers")
        if self._bridge is not None:
            factor = mean_factor(*sums[-2:], self._nominal)
            self._before = self._share_of(plain)
            for load in self._loads if self._num_sent else ():
                while self._num_summed < load.last:
                    self._sum_next()
                self._carry(load, factor / self._share_of(sums[-1]) if load.flat.itemsize == 2 else factor)
        self._start += self._num_sent
        self._num_sent = self._num_summed = 0
        check, self._check = self._check, 0.0
        # That all slices are there, and what came from the other nodes for ranks that have no bridge.
        *sums, self.check = self._exchange.sums([*(sums if self._is_first else [0.0] * len(sums)), check], "the means")
        self._has_squares, self.squares = self.squares, self.wants_squares
        return Sums(*sums, 0.0 if math.isfinite(self.check) else 1.0)

    def _share_of(self, plain: float) -> float:
        """By what gradients are multiplied before they travel in 16 bits.

        A sum of gradients that were not divided yet is larger than their mean, and may not fit into 16 bits where that does.
        """
        return 1.0 / self._comm.size if is_undivided(plain, self._nominal) else 1.0

    def exchange(self, numbers: list[float], what: str) -> list[float]:
        sums = self._over_nodes(self._exchange.sums(numbers, what), what)
        return sums if self._all_carry else self._exchange.sums(sums if self._is_first else [0.0] * len(sums), what)

    def _over_nodes(self, numbers: list[float], what: str) -> list[float]:
        """Sums over the nodes, of numbers that all ranks of a node have; on a rank without a bridge nothing is added."""
        if self._bridge is None:
            return numbers
        return [sum(each) for each in zip(*self._bridge.gather(numbers, f"{self._name}.{what}"))]

    def _sum_next(self) -> None:
        """Over the ranks of this node."""
        for wire, _, parts in self._pieces[self._num_summed]:
            if wire.itemsize > 2:
                add_up(parts, wire)
                continue
            total = add_up(parts, self._wide[: len(wire)])
            wire.copy_(total if self._before == 1.0 else total.mul_(self._before))
        self._num_summed += 1

    def _carry(self, load: Load, factor: float) -> None:
        """Over the nodes, and make it the mean."""
        if not load.flat.numel():
            return
        self._bridge.sum_(load.flat, f"{self._name}.bucket{load.first}")
        for number in range(load.first, load.last):
            for wire, result, _ in self._pieces[number]:
                if wire.dtype is result.dtype:
                    torch.mul(wire, factor, out=result)
                elif wire.itemsize > result.itemsize:
                    result.copy_(wire.mul_(factor))
                else:  # torch.mul would round the product to the wire's 16 bits
                    result.copy_(wire).mul_(factor)
                self._check += self._checked(result)

    def _cut_wire(self, number: int) -> list[tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]]:
        """Each piece of a slice: of what travels, of the result, and of the ranks' gradients."""
        pieces, start = [], 0
        for result, parts in self._chunks[number]:
            pieces.append((self._wires[number][start : start + len(result)], result, parts))
            start += len(result)
        return pieces


def node_sizes(comm: Communicator, name: str) -> list[int]:
    """How many ranks each node has, in the order of the nodes; a collective where there are several.

    Example:
        >>> from hvd_trainer.comm.single import SingleCommunicator
        >>> node_sizes(SingleCommunicator(), "sizes")
        [1]
    """
    if comm.num_nodes == 1:
        return [comm.size]
    sizes = dict(comm.gather_objects((comm.node, comm.local_size), name))
    return [sizes[node] for node in range(comm.num_nodes)]


def shown(sizes: Sequence[int]) -> str:
    """Nodes and their ranks, in words.

    Example:
        >>> shown([4]), shown([2, 2]), shown([2, 1])
        ('1 node of 4 ranks', '2 nodes of 2 ranks', '2 nodes of 2 + 1 ranks')
    """
    each = str(sizes[0]) if len(set(sizes)) == 1 else " + ".join(map(str, sizes))
    return f"{len(sizes)} node{'s' if len(sizes) > 1 else ''} of {each} rank{'' if each == '1' else 's'}"
