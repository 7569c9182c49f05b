"""Sums of 16-bit floats: made in float32 and rounded once, and on the way either wide or narrow.

Wide: the tensor is turned into float32, and one allreduce adds it. Narrow: every rank gets its share of the elements from
all ranks as the 16 bits they are, adds them in float32 in the order of the ranks, rounds once, and the sums are gathered:
half the bytes in two rounds instead of one. Either way the bits are the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

DTYPES = (torch.float16, torch.bfloat16)
WIRES = ("auto", "wide", "narrow")

# Over several nodes narrow was faster from these sizes on, in bytes of the tensor; on one node it was slower or no faster
# (docs/decisions/0022-halves-on-the-wire.md). Horovod begins each of the two rounds with its next cycle.
NARROW_BYTES = {"mpi": 0, "torch": 512 * 1024, "horovod": 2 * 1024 * 1024}
NARROW_SHARE_BYTES = 8 * 1024  # a rank sends one message to each other rank: a small one costs as much as its latency


def is_narrow(wire: str, engine: str, num_nodes: int, size: int, num_bytes: int) -> bool:
    """Whether a sum of 16-bit floats travels as 16 bits.

    Args:
        wire: one of `WIRES`.
        engine: "mpi", "horovod" or "torch", on CPUs.
        num_nodes: of the job.
        size: ranks.
        num_bytes: of the tensor.

    Example:
        >>> is_narrow("auto", "mpi", 1, 2, 1 << 24), is_narrow("auto", "mpi", 2, 2, 16384), is_narrow("auto", "mpi", 2, 4, 16384)
        (False, True, False)
        >>> is_narrow("narrow", "mpi", 1, 2, 4), is_narrow("narrow", "mpi", 1, 1, 4)
        (True, False)
    """
    if size == 1 or wire == "wide":
        return False
    if wire == "narrow":
        return True
    return num_nodes > 1 and num_bytes >= max(NARROW_BYTES[engine], NARROW_SHARE_BYTES * size)


def share_counts(numel: int, size: int) -> list[int]:
    """How many elements each rank adds up: as many as the first one's, then what is left, then none.

    Example:
        >>> share_counts(10, 4), share_counts(2, 3), share_counts(0, 2)
        ([3, 3, 3, 1], [1, 1, 0], [0, 0])
    """
    longest = -(-numel // size)
    return [max(0, min(longest, numel - rank * longest)) for rank in range(size)]


def add_up(parts: Sequence[torch.Tensor] | torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """The sum of the parts, in their order, in `total`, which is returned; 16-bit floats are added as its 32 bits.

    Example:
        >>> add_up([torch.ones(2), torch.ones(2), torch.ones(2)], torch.zeros(2)).tolist()
        [3.0, 3.0]
    """
    if len(parts) > 1 and parts[0].dtype is total.dtype:
        torch.add(parts[0], parts[1], out=total)
        parts = parts[2:]
    else:
        total.copy_(parts[0])
        parts = parts[1:]
    for part in parts:
        total.add_(part)
    return total


def add_rows(rows: torch.Tensor, scale: float, work: torch.Tensor, result: torch.Tensor) -> None:
    """result = round(scale * (row 0 + row 1 + ...)), in float32 up to the one rounding; wider floats without one.

    Args:
        rows: of floats, one a rank.
        scale: factor of the sum.
        work: float32 for 16-bit floats, else of their dtype; as long as a row; overwritten; may be `result`.
        result: of the rows' dtype, as long as a row; may lie in `rows`.
    """
    add_up(rows, work)
    if scale != 1.0:
        work.mul_(scale)
    result.copy_(work)
