"""The bridge of engine mpi: a communicator of MPI for each local rank that carries."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_trainer.comm.bridge import Bridge
from hvd_trainer.comm.mpi_memory import memory_of
from hvd_trainer.comm.mpi_shares import MpiShares, least_bytes


class MpiBridge(Bridge):
    """See `Bridge`.

    Args:
        MPI: mpi4py's module.
        comm: mpi4py's communicator of the peers, by node.
        call: runs a blocking function of MPI under the watchdog: call(kind, name, function, arguments...).
    """

    def __init__(self, MPI: Any, comm: Any, call: Callable[..., Any]) -> None:
        self._mpi, self._comm, self._call = MPI, comm, call
        self._types = {torch.float32: MPI.FLOAT, torch.float64: MPI.DOUBLE}
        self._shares = MpiShares(MPI, comm)

    def sum_(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.itemsize == 2 or tensor.nbytes >= least_bytes(self._comm.size):
            self._call("allreduce", name, self._shares.sum_, tensor)
            return
        buffer = [memory_of(self._mpi, tensor), self._types[tensor.dtype]]
        self._call("allreduce", name, self._comm.Allreduce, self._mpi.IN_PLACE, buffer, self._mpi.SUM)

    def gather(self, numbers: Sequence[float], name: str) -> list[list[float]]:
        # Not a sum by MPI, whose order beyond two nodes is its own.
        count, mine = len(numbers), array("d", numbers)
        every = array("d", bytes(8 * count * self._comm.size))
        self._call("allgather", name, self._comm.Allgather, [mine, self._mpi.DOUBLE], [every, self._mpi.DOUBLE])
        return [every[start : start + count].tolist() for start in range(0, len(every), count)] if count else [[]] * self._comm.size
