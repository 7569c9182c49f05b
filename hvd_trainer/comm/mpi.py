"""Engine "mpi": collectives through mpi4py, for CPU clusters. mpi4py is imported only when a communicator is made."""

from __future__ import annotations

import atexit
import faulthandler
import sys
from collections import deque
from typing import Any, NoReturn

import torch

from hvd_trainer import env
from hvd_trainer.comm import guard, launched, staging, topology
from hvd_trainer.comm.api import Communicator, Pending, Topology
from hvd_trainer.comm.bridge import Bridge
from hvd_trainer.comm.mpi_bridge import MpiBridge
from hvd_trainer.comm.mpi_memory import memory_of
from hvd_trainer.comm.mpi_sums import MpiSums
from hvd_trainer.comm.watchdog import Watchdog
from hvd_trainer.errors import CollectiveError

LEFT_TAG = 7331  # of the empty message by which a rank tells the next one that it makes no more collectives


class MpiCommunicator(Communicator):
    """All processes of an MPI job.

    An allreduce is queued, and the first `wait()` runs the queue up to it, in the order of submission, with the
    blocking MPI_Allreduce. MPI_Iallreduce looks like the natural call, but Open MPI moves its data only inside MPI
    calls, so nothing overlaps, and its algorithms are slower: 2 ranks, 32 MB: 33 ms against 13; 1 MB: 0.35 against 0.19.
    """

    engine = "mpi"
    backend = "mpi"
    has_bridges = True

    def __init__(self, timeout_s: float = 600.0, checked: bool = False) -> None:
        super().__init__(Topology(), torch.device("cpu"), timeout_s, checked)
        MPI = self._mpi = connect(timeout_s)
        self._comm = MPI.COMM_WORLD.Dup()  # our messages cannot meet those of the user's mpi4py
        self._watch = Watchdog(
            timeout_s, self._describe, lambda error: guard.fail_job(error, self), self._ended_neighbour
        )
        self._watch.start()
        self._queue: deque[Queued] = deque()
        self._bridges: dict[int, Bridge | None] = {}
        hosts = self._call("start", "hosts", self._comm.allgather, topology.this_host())
        self.topology = topology.from_hosts(self._comm.rank, hosts)
        self._sums = MpiSums(MPI, self._comm, between_nodes=self.num_nodes > 1)

    def bridge(self, num_carriers: int) -> Bridge | None:
        if num_carriers not in self._bridges:
            self._flush()
            carries = self.local_rank < num_carriers
            color = self.local_rank if carries else self._mpi.UNDEFINED
            peers = self._call("start", "bridge", self._comm.Split, color, self.node)
            self._bridges[num_carriers] = MpiBridge(self._mpi, peers, self._call) if carries else None
        return self._bridges[num_carriers]

    def _ended_neighbour(self) -> str:
        """ "rank 3", where the rank before this one has left; called by the watchdog while a collective hangs.

        Where some ranks have left and the others wait, one of those waiting follows one that left.
        """
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE or self.size == 1:
            return ""
        before = (self.rank - 1) % self.size
        return f"rank {before}" if self._comm.Iprobe(source=before, tag=LEFT_TAG) else ""

    def _describe(self) -> tuple[str, str]:
        return guard.who(self), self.where

    def allreduce_(self, tensor: torch.Tensor, name: str, op: str = "sum", scale: float = 1.0) -> Pending:
        # Memory that was reduced before needs no look at what is in it: of 1 KB the checks would take a third of the time.
        if op == "sum" and scale == 1.0 and not self.checked and not self.closed and name not in self._flying:
            try:
                buffer = self._sums.buffers.get((tensor.data_ptr(), tensor.nbytes, tensor.dtype))
            except (RuntimeError, AttributeError):  # a sparse tensor, or none: the checks say so
                buffer = None
            if buffer is not None and tensor.is_contiguous():
                queued = Queued(self, tensor, name, op, scale, buffer)
                self._queue.append(queued)
                return queued.track(self._flying, name)
        return super().allreduce_(tensor, name, op, scale)

    def _allreduce_(self, tensor: torch.Tensor, name: str, op: str, scale: float) -> Pending:
        queued = Queued(self, tensor, name, op, scale)
        self._queue.append(queued)
        return queued

    def run_until(self, last: Queued) -> None:
        """Run the queue up to this one, in the order of submission."""
        queue, watch = self._queue, self._watch
        while not last.finished:
            item = queue.popleft()
            tensor, name, op = item.tensor, item.name, item.op
            watch.now = ("allreduce", name)  # as `enter` does: 1 KB takes 3 us, of which two calls would be 0.2
            try:
                if item.buffer is not None:
                    self._sums.add(item.buffer)
                else:
                    self._sums.reduce_(tensor, op, item.scale, tensor.itemsize == 2 and self._is_narrow(tensor, op))
            except self._mpi.Exception as error:
                raise self._explain("allreduce", name, error) from error
            finally:
                watch.now = None
            item.finished = True

    def _flush(self) -> None:
        """Other collectives must not overtake queued ones."""
        if self._queue:
            self.run_until(self._queue[-1])

    def _call(self, kind: str, name: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._watch.enter(kind, name)
        try:
            return function(*args, **kwargs)
        except self._mpi.Exception as error:
            raise self._explain(kind, name, error) from error
        finally:
            self._watch.leave()

    def _explain(self, kind: str, name: str, error: Exception) -> CollectiveError:
        return CollectiveError(
            f"{guard.who(self)}: {kind} {name!r} failed at {self.where}: {error}",
            fix="the ranks passed different sizes, or one of them ended; HVD_TRAINER_CHECKED=1 compares all calls",
        )

    def _broadcast_(self, tensor: torch.Tensor, root: int, name: str) -> None:
        self._flush()
        work = staging.stage(tensor, reducing=False)
        if work.numel():
            memory = memory_of(self._mpi, work)
            self._call("broadcast", name, self._comm.Bcast, [memory, work.numel(), self._mpi.BYTE], root=root)
        staging.unstage(tensor, work, reducing=False)

    def _gather_objects(self, obj: Any, name: str) -> list[Any]:
        self._flush()
        return self._call("gather_objects", name, self._comm.allgather, obj)

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        self._flush()
        return self._call("broadcast_object", name, self._comm.bcast, obj, root=root)

    def _barrier(self, name: str) -> None:
        self._flush()
        self._call("barrier", name, self._comm.Barrier)

    def abort(self, code: int) -> None:
        abort_world(code)

    def close(self) -> None:
        # MPI is finalised at exit: MPI_Finalize is collective, and a rank may have work left that the others have not.
        if not self.closed:
            self._flush()
            self._watch.stop()
            if self.size > 1:
                self._left = self._comm.Isend(b"", dest=(self.rank + 1) % self.size, tag=LEFT_TAG)
            super().close()


class Queued(Pending):
    """An allreduce in the queue of an MpiCommunicator."""

    __slots__ = ("name", "op", "scale", "buffer", "finished", "_comm")

    def __init__(self, comm: MpiCommunicator, tensor: torch.Tensor, name: str, op: str, scale: float, buffer: Any = None) -> None:
        self.tensor, self.name, self.op, self.scale, self.finished, self._comm = tensor, name, op, scale, False, comm
        self.buffer = buffer  # of memory that was reduced before; the sum is then one call
        self._flying = None

    def done(self) -> bool:
        return self.finished

    def wait(self) -> torch.Tensor:
        self.land()
        if not self.finished:
            self._comm.run_until(self)
        return self.tensor


def load() -> Any:
    """mpi4py's MPI module, not initialised by the import (unless the user's own import did).

    Raises:
        ImportError, RuntimeError, OSError: mpi4py or its MPI library is missing or does not load.
    """
    import mpi4py

    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    return MPI


def connect(timeout_s: float) -> Any:
    """mpi4py's MPI module, initialised together with the other ranks, and finalised at exit.

    Raises:
        ImportError, RuntimeError, OSError: as `load`.
    """
    env.quiet_polling(timeout_s)
    MPI = load()
    if not MPI.Is_initialized():
        wait_for_other_ranks_in_mpi_init(MPI, timeout_s)
        atexit.register(finalize)
    return MPI


def wait_for_other_ranks_in_mpi_init(MPI: Any, timeout_s: float) -> None:
    """MPI_Init, which returns when all ranks have called it.

    mpi4py holds the interpreter's lock in it, so no Python thread can watch; faulthandler's timer can, and shows this
    function's name.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    MPI.Init_thread(MPI.THREAD_MULTIPLE)  # the watchdog looks and aborts from a thread of its own
    faulthandler.cancel_dump_traceback_later()


def abort_world(code: int) -> NoReturn:
    """End all ranks of an MPI job.

    Open MPI's mpirun ends them when one process vanishes, and says so in a few lines where MPI_Abort takes a page;
    other launchers (srun) let the others wait.
    """
    guard.exit_soon(code)
    MPI = load()
    if launched.read(env.snapshot()).launcher != "openmpi" and MPI.Is_initialized():
        sys.stdout.flush()
        MPI.COMM_WORLD.Abort(code)
    guard.exit_now(code)


def finalize() -> None:
    """At exit; without it the launcher reports a crash."""
    MPI = load()
    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()
