"""Engine "horovod": Horovod's collectives (NCCL, MPI or Gloo). Horovod is imported only when a communicator is made."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch

from hvd_trainer import env
from hvd_trainer.comm import guard, half_floats, mpi, parts, staging, topology
from hvd_trainer.comm.api import Communicator, Pending, Topology
from hvd_trainer.comm.relay import Relay
from hvd_trainer.comm.watchdog import Watchdog, timeout_error
from hvd_trainer.errors import CollectiveError, StartError

HEADER = 8  # bytes before each pickled object, holding its length
# Polls that only give the core away, before those that sleep. time.sleep(0) sleeps, for 55 us: with a cycle of 0.1 ms 1 MB
# took 0.63 ms then, and 0.40 with sched_yield, as Horovod's own wait does.
YIELDS = 400
SLEEP_SHARE = 0.1  # of the time waited so far, is the next sleep: a result is found at most so much too late
LONGEST_SLEEP_S = 500e-6
NAME_PREFIX = "hvd_trainer."  # our tensors cannot meet those of the user's own Horovod calls


class HorovodCommunicator(Communicator):
    """All processes of a Horovod job.

    Every operation is named: Horovod's own names count per rank, and ranks with an unequal history wait for ever.
    Waiting is polling with a limit: its stall check is dead under Gloo, and its own wait spins on a core.
    """

    engine = "horovod"

    def __init__(self, backend: str, timeout_s: float = 600.0, checked: bool = False) -> None:
        super().__init__(Topology(), torch.device("cpu"), timeout_s, checked)
        self.backend = backend
        env.quiet_polling(timeout_s)
        if backend == "gloo":
            env.use_horovod_operations("gloo")
        watch = Watchdog(timeout_s, lambda: (guard.who(self), self.where), lambda error: guard.fail_job(error, self))
        watch.start()
        watch.enter("start", "hvd.init")
        hvd = self._hvd = load()
        try:
            hvd.init()
        except Exception as error:  # Horovod raises whatever its parts raise
            raise StartError(
                f"{guard.who()}: Horovod did not start: {error}",
                fix="see whether all ranks started and can reach each other",
            ) from error
        watch.leave()
        watch.stop()
        self.topology = Topology(
            hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        )
        self._relay = Relay()
        self._ops = {"sum": hvd.Sum, "max": hvd.Max, "min": hvd.Min}
        self.topology = topology.from_hosts(self.rank, self._gather_objects(topology.this_host(), "hosts"))
        if backend == "nccl":
            index = topology.device_index(self.local_rank, torch.cuda.device_count())
            torch.cuda.set_device(index)
            self.device = torch.device("cuda", index)

    def _allreduce_(self, tensor: torch.Tensor, name: str, op: str, scale: float) -> Pending:
        self._relay.run_ready()
        if not tensor.numel():
            return Pending(tensor)
        if self._is_narrow(tensor, op):
            return self._narrow_sum(tensor, name, scale)
        work = staging.stage(tensor)
        hvd, full = self._hvd, NAME_PREFIX + name
        op = self._ops[staging.work_op(tensor.dtype, op)]
        handle = self._send("allreduce", name, lambda: hvd.allreduce_async_(work, name=full, op=op))
        mark = self._relay.mark()

        def wait() -> None:
            self._relay.run(mark)
            self._finish(handle, "allreduce", name)
            staging.unstage(tensor, work, scale=scale)

        return Pending(tensor, wait, lambda: hvd.poll(handle))

    def _narrow_sum(self, tensor: torch.Tensor, name: str, scale: float) -> Pending:
        """As the 16 bits they are: an alltoall of shares, their sum here, an allgather of the sums."""
        hvd, bits = self._hvd, tensor.detach().contiguous().view(-1).view(torch.int16)
        counts = torch.tensor(half_floats.share_counts(bits.numel(), self.size), dtype=torch.int32)
        first, second = f"{NAME_PREFIX}{name}.shares", f"{NAME_PREFIX}{name}.sums"
        shares = self._send("allreduce", name, lambda: hvd.alltoall_async(bits, counts, name=first))
        sums = []

        def add_and_gather() -> None:
            rows = self._finish(shares, "allreduce", name)[0].view(tensor.dtype).view(self.size, -1)
            half_floats.add_rows(rows, scale, rows.new_empty(rows.shape[1], dtype=torch.float32), rows[0])
            mine = rows[0].view(torch.int16)
            sums.append(self._send("allreduce", name, lambda: hvd.allgather_async(mine, name=second)))

        mark = self._relay.add(lambda: hvd.poll(shares), add_and_gather)

        def wait() -> None:
            self._relay.run(mark)
            every = self._finish(sums[0], "allreduce", name)
            tensor.detach().copy_(every.view(tensor.dtype).view(tensor.shape))

        return Pending(tensor, wait, lambda: bool(sums) and hvd.poll(sums[0]))

    def _broadcast_(self, tensor: torch.Tensor, root: int, name: str) -> None:
        work = staging.stage(tensor, reducing=False)
        if work.numel():
            self._run("broadcast", name, lambda: self._hvd.broadcast_async_(work, root, name=NAME_PREFIX + name))
        staging.unstage(tensor, work, reducing=False)

    def _gather_objects(self, obj: Any, name: str) -> list[Any]:
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
        every = self._allgather("gather_objects", name, len(data).to_bytes(HEADER, "little") + data)
        objects, at = [], 0
        while at < len(every):
            length = int.from_bytes(every[at : at + HEADER], "little")
            at += HEADER + length
            objects.append(pickle.loads(every[at - length : at]))
        return objects

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        # One allgather to which the others add nothing: no second round for the length.
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL) if self.rank == root else b""
        every = self._allgather("broadcast_object", name, data)
        return obj if self.rank == root else pickle.loads(every)

    def _barrier(self, name: str) -> None:
        self._allgather("barrier", name, b"1")

    def _allgather(self, kind: str, name: str, data: bytes) -> memoryview:
        """The bytes of all ranks, in rank order, one after the other."""
        mine, full = as_bytes(data), f"{NAME_PREFIX}{kind}.{name}"
        return memoryview(self._run(kind, name, lambda: self._hvd.allgather_async(mine, name=full)).numpy())

    def _run(self, kind: str, name: str, submit: Callable[[], int]) -> Any:
        self._relay.run(self._relay.mark())
        return self._finish(self._send(kind, name, submit), kind, name)

    def _send(self, kind: str, name: str, submit: Callable[[], int]) -> int:
        try:
            with torch.inference_mode(False):  # Horovod resizes its outputs from a thread that is outside of it
                return submit()
        except (ValueError, RuntimeError) as error:
            raise self._explain(kind, name, error) from error

    def _finish(self, handle: int, kind: str, name: str) -> Any:
        """Wait for a handle: yield first, then sleep for a share of what was waited, at most `timeout_s` in all."""
        poll, yields, began = self._hvd.poll, YIELDS, time.monotonic()
        while not poll(handle):
            if yields:
                yields -= 1
                os.sched_yield()
                continue
            waited = time.monotonic() - began
            if waited > self.timeout_s:
                raise timeout_error(kind, name, self.timeout_s, guard.who(self), self.where)
            time.sleep(min(waited * SLEEP_SHARE, LONGEST_SLEEP_S))
        try:
            return self._hvd.synchronize(handle)
        except (ValueError, RuntimeError) as error:
            raise self._explain(kind, name, error) from error

    def _explain(self, kind: str, name: str, error: Exception) -> CollectiveError:
        """Horovod's message never says which rank, and calls every death of another rank a shutdown."""
        text = str(error)
        given = f"{guard.who(self)}: {kind} {name!r} failed at {self.where}"
        ended = ("shut down", "Connection", "closed by peer", "Timed out", "reset by peer", "Read error")
        if any(word in text for word in ended):
            return guard.OtherRankEnded(
                f"{given}: another rank ended or does not answer", fix="see that rank's message or the launcher's"
            )
        return CollectiveError(f"{given}: {text}", fix="pass the same name, shape, dtype and op on every rank")

    def abort(self, code: int) -> None:
        # Horovod has no abort of its own. horovodrun ends the others when one process vanishes.
        if self.backend == "mpi" and not parts.InstalledParts().mpi_problem():
            mpi.abort_world(code)
        guard.exit_now(code)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._hvd.shutdown()


def load() -> Any:
    """Horovod's torch module; importing it initialises nothing.

    Raises:
        ImportError, OSError: Horovod is missing, or a library that it was built with.
    """
    import horovod.torch

    return horovod.torch


def as_bytes(data: bytes) -> torch.Tensor:
    """A one-dimensional uint8 tensor that holds `data`."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
