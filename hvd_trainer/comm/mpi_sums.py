"""How the mpi engine reduces one tensor: in place, in pieces that stay in a core's cache."""

from __future__ import annotations

import math
from typing import Any

import torch

from hvd_trainer.comm import half_floats, mpi_shares, staging
from hvd_trainer.comm.mpi_memory import memory_of
from hvd_trainer.comm.mpi_shares import MpiShares
from hvd_trainer.comm.scratch import Scratch

# Of what one call of MPI_Allreduce adds, 2 ranks on one node, ms in pieces of 512 KB / 1 MB / 2 MB / 4 MB / 8 MB / 64 MB: 4 MB of float32
# 1.46 / 0.82 / 0.80 / 0.86 / 0.81 / 0.85, 16 MB 7.6 / 4.9 / 4.3 / 3.8 / 3.4 / 3.2, 64 MB 46 / 47 / 40 / 44 / 43 / 41; on another day 64 MB
# 27 / 27 / - / 28 / 26 / 42: from 32 MB on Open MPI's temporary memory comes fresh from the system each time.
CALL_BYTES = 4 << 20
# Of what is converted, or travels between nodes, at a time; the first to stay in a core's cache: 4 MB of 16-bit floats, made float32, in pieces of 256 KB (of
# float32) 3.1 ms, 512 KB 3.2, 1 MB 3.7, whole 8.8.
PIECE_BYTES = 512 * 1024
MOST_BUFFERS = 1024
FLOATS = (torch.float32, torch.float64)


class MpiSums:
    """Reduces tensors on a communicator of mpi4py.

    Args:
        MPI: mpi4py's module.
        comm: its communicator.
        between_nodes: its ranks are on several nodes: from a size on they add in shares.

    Attributes:
        buffers: of contiguous memory that was reduced in one call, by address, bytes and dtype; what `add` takes.
    """

    def __init__(self, MPI: Any, comm: Any, between_nodes: bool) -> None:
        self._mpi, self._comm, self._size = MPI, comm, comm.size
        self._in_place = MPI.IN_PLACE
        self._types = {
            torch.float32: MPI.FLOAT,
            torch.float64: MPI.DOUBLE,
            torch.int32: MPI.INT32_T,
            torch.int64: MPI.INT64_T,
        }
        self._ops = {"sum": MPI.SUM, "max": MPI.MAX, "min": MPI.MIN}
        self._allreduce = comm.Allreduce
        # Addresses and sizes only: a training step reduces the same memory again and again.
        self.buffers: dict[tuple[int, int, torch.dtype], list[Any]] = {}
        self._scratch, self._shares = Scratch(), MpiShares(MPI, comm)
        # Between nodes 4 hosts over 400 Mbit/s took for 4 MB in one call 253 ms, for 4.5 MB in pieces 183.
        self._call_bytes = PIECE_BYTES if between_nodes else CALL_BYTES
        self._shares_from = mpi_shares.least_bytes(self._size) if between_nodes else math.inf  # bytes of floats
        self._short_bytes = min(self._call_bytes, self._shares_from - 1)  # up to here a sum is one call of MPI_Allreduce

    def add(self, buffer: list[Any]) -> None:
        """Add up memory that is known already, in place."""
        self._allreduce(self._in_place, buffer)  # MPI.SUM is mpi4py's own default

    def reduce_(self, tensor: torch.Tensor, op: str, scale: float, narrow: bool) -> None:
        """Reduce in place, then multiply.

        Args:
            tensor: what `staging.check` let through.
            op: "sum", "max" or "min".
            scale: of the sum, before the rounding of 16-bit floats.
            narrow: 16-bit floats travel as 16 bits.
        """
        dtype, num_bytes = tensor.dtype, tensor.nbytes
        if num_bytes <= self._short_bytes and scale == 1.0 and dtype in self._types and tensor.is_contiguous():
            if num_bytes:  # the short way: 1 KB takes 3 us, of which each torch operation would be one more
                buffer = self.buffers.get((tensor.data_ptr(), num_bytes, dtype))
                self._allreduce(self._in_place, buffer or self._remember(tensor), self._ops[op])
            return
        tensor = tensor.detach()
        flat = (tensor if tensor.is_contiguous() else tensor.contiguous()).view(-1)
        work_dtype = staging.WORK_DTYPE[tensor.dtype]
        numel = PIECE_BYTES // work_dtype.itemsize
        if narrow:
            add, numel = self._add_in_shares, max(numel, self._size * half_floats.NARROW_SHARE_BYTES // 2)
        elif num_bytes >= self._shares_from and op == "sum" and dtype in FLOATS:
            add, numel = self._add_in_shares, max(numel, self._size * mpi_shares.SHARE_BYTES // dtype.itemsize)
        elif work_dtype is tensor.dtype:
            add, numel = self._add_in_place, self._call_bytes // work_dtype.itemsize
        else:
            add = self._add_wide
        op = self._ops[staging.work_op(tensor.dtype, op)]
        total = flat.numel()
        if 0 < total <= numel:
            add(flat, op, scale)
        elif total:
            for start in range(0, total, numel):  # Tensor.split takes 13 us
                add(flat[start : start + numel], op, scale)
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view(tensor.shape))

    def _remember(self, tensor: torch.Tensor) -> list[Any]:
        if len(self.buffers) >= MOST_BUFFERS:
            self.buffers.clear()
        buffer = self.buffers[tensor.data_ptr(), tensor.nbytes, tensor.dtype] = [memory_of(self._mpi, tensor), self._types[tensor.dtype]]
        return buffer

    def _add_in_place(self, piece: torch.Tensor, op: Any, scale: float) -> None:
        self._comm.Allreduce(self._in_place, [memory_of(self._mpi, piece), self._types[piece.dtype]], op)
        if scale != 1.0:
            piece.mul_(scale)

    def _add_wide(self, piece: torch.Tensor, op: Any, scale: float) -> None:
        work = self._scratch.get("wide", staging.WORK_DTYPE[piece.dtype], piece.numel())
        work.copy_(piece)
        self._add_in_place(work, op, scale)
        piece.copy_(work)

    def _add_in_shares(self, piece: torch.Tensor, op: Any, scale: float) -> None:
        self._shares.sum_(piece, scale)
