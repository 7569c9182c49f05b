"""Flat buffers, one for each bucket: of this rank alone, or in memory that all ranks of the node see."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.node_memory import open_node_memory


def open_flats(
    wanted: Sequence[tuple[int, torch.dtype]], comm: Communicator, name: str, *, shared: bool
) -> tuple[list[torch.Tensor], str]:
    """Zeros of these lengths, or why there is no room for them; a collective where they are shared.

    Args:
        wanted: number of elements and dtype of each, the same on all ranks.
        comm: the ranks.
        name: of the collective, made unique here.
        shared: all ranks of the node see the same memory.

    Returns:
        The buffers and "", or none and the problem, the same on all ranks.
    """
    if not shared:
        return [torch.zeros(numel, dtype=dtype) for numel, dtype in wanted], ""
    sizes = [numel * dtype.itemsize for numel, dtype in wanted]
    memory, problem = open_node_memory(comm, sizes, 0, comm.unique_name(name))
    if memory is None:
        return [], problem
    return [memory.tensor(numel, dtype) for numel, dtype in wanted], ""
