"""The memory of a tensor as mpi4py takes it."""

from __future__ import annotations

from typing import Any

import torch


def memory_of(MPI: Any, tensor: torch.Tensor) -> Any:
    """A buffer of mpi4py over a tensor's elements, without a copy; the tensor must outlive it.

    Args:
        MPI: mpi4py's module.
        tensor: contiguous, on the CPU.
    """
    return MPI.memory.fromaddress(tensor.data_ptr(), tensor.nbytes)
