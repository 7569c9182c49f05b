"""Engine "torch": torch.distributed's collectives (NCCL or Gloo). It needs no compiler and no MPI."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from hvd_trainer import env
from hvd_trainer.comm import guard, half_floats, mpi, rendezvous, staging, topology
from hvd_trainer.comm.api import Communicator, Pending, Topology
from hvd_trainer.comm.launched import Launched
from hvd_trainer.comm.parts import first_line
from hvd_trainer.comm.relay import Relay
from hvd_trainer.comm.watchdog import Watchdog, timeout_error
from hvd_trainer.errors import CollectiveError, ConfigError, StartError

# torch's own limit comes later than ours: under Gloo it names neither rank nor tensor, under NCCL it ends the process.
LATER_S = 10.0
FIRST_SLEEP_S, LONGEST_SLEEP_S = 20e-6, 500e-6


class TorchCommunicator(Communicator):
    """All processes of a torch.distributed job.

    It makes the default process group, because code that people bring (metrics, their own collectives) looks for that
    one; and a second group of the same ranks for itself, so that our messages cannot meet theirs. Objects always travel
    through Gloo, in host memory.
    """

    engine = "torch"

    def __init__(
        self, backend: str, place: Launched, init_method: str, timeout_s: float = 600.0, checked: bool = False
    ) -> None:
        super().__init__(Topology(place.rank, place.size), torch.device("cpu"), timeout_s, checked)
        if dist.is_initialized():
            raise ConfigError(
                "torch.distributed.init_process_group() was called before ht.init(engine='torch')",
                "a process without a default group",
                "leave that call out: ht.init makes the group, and torch.distributed's functions then work too",
            )
        self.backend = backend
        kinds = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
        self._through_mpi = init_method == rendezvous.THROUGH_MPI
        if self._through_mpi:
            init_method = self._ask_rank_0(place)
        if place.local_size != place.size and not rendezvous.named_address():
            env.gloo_interface(rendezvous.interface(urlsplit(init_method).hostname or ""))
        self._connect(kinds, init_method)
        self._relay = Relay()
        self._gathers: Any = None
        self._ops = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
        self.topology = topology.from_hosts(self.rank, self._gather_objects(topology.this_host(), "hosts"))
        if backend == "nccl":
            index = topology.device_index(self.local_rank, torch.cuda.device_count())
            torch.cuda.set_device(index)
            self.device = torch.device("cuda", index)

    def _ask_rank_0(self, place: Launched) -> str:
        """Rank 0's address, through mpi4py; under an MPI's launcher on several nodes nothing else tells it."""
        try:
            world = mpi.connect(self.timeout_s).COMM_WORLD
        except (ImportError, RuntimeError, OSError) as error:
            raise rendezvous.nowhere(place, f"mpi4py, which would tell them, does not work: {error}") from error
        if world.size != place.size:
            raise rendezvous.nowhere(place, f"mpi4py, which would tell them, sees {world.size}")
        mine = f"tcp://{rendezvous.own_address()}:{rendezvous.free_port()}" if place.rank == 0 else ""
        return world.bcast(mine)

    def _connect(self, kinds: str, init_method: str) -> None:
        limit = timedelta(seconds=self.timeout_s)
        # Where the store was reached and another rank is not, Gloo waits five times as long as it is told.
        watch = Watchdog(
            self.timeout_s + LATER_S, lambda: (guard.who(self), self.where), lambda error: guard.fail_job(error, self)
        )
        watch.start()
        watch.enter("start", "init_process_group")
        where: dict[str, Any] = {"init_method": init_method} if init_method else {"store": dist.HashStore()}
        try:
            dist.init_process_group(kinds, rank=self.rank, world_size=self.size, timeout=limit, **where)
            self._group = self._new_group(kinds)
        except (RuntimeError, ValueError, OSError) as error:
            text = first_line(error)
            late = any(word in text.lower() for word in ("timed out", "timeout", "clients")) and "refused" not in text
            if late:
                given = f"not all ranks came to {init_method} within {self.timeout_s:g} s"
            else:
                given = f"the ranks could not meet at {init_method}: {text}"
            fix = (
                "see whether all ranks started and every node reaches the others (GLOO_SOCKET_IFNAME=eth0 names the "
                "network to use); another place: init_method="
            )
            raise StartError(given, fix=fix) from error
        finally:
            watch.stop()

    def _new_group(self, kinds: str) -> Any:
        """All ranks again. torch's own limit comes later than ours."""
        return dist.new_group(backend=kinds, timeout=timedelta(seconds=self.timeout_s + LATER_S))

    def _allreduce_(self, tensor: torch.Tensor, name: str, op: str, scale: float) -> Pending:
        self._relay.run_ready()
        if not tensor.numel():
            return Pending(tensor)
        if self._is_narrow(tensor, op):
            return self._narrow_sum(tensor, name, scale)
        work = staging.stage(tensor)
        op = self._ops[staging.work_op(tensor.dtype, op)]
        flight = self._send("allreduce", name, lambda: dist.all_reduce(work, op, self._group, async_op=True))
        mark = self._relay.mark()

        def wait() -> None:
            self._relay.run(mark)
            self._finish(flight, "allreduce", name, self.device.type)
            staging.unstage(tensor, work, scale=scale)

        return Pending(tensor, wait, flight.is_completed)

    def _narrow_sum(self, tensor: torch.Tensor, name: str, scale: float) -> Pending:
        """As the 16 bits they are: an alltoall of shares, their sum here, an allgather of the sums."""
        if self._gathers is None:
            # A group of its own, for torch knows collectives by their order alone: when a second one comes, in the midst of
            # others' first ones, differs between ranks.
            self._gathers = self._send("allreduce", name, lambda: self._new_group("gloo"))
        flat, size = tensor.detach().contiguous().view(-1), self.size
        counts = half_floats.share_counts(flat.numel(), size)
        rows = flat.new_empty(size, counts[self.rank])
        sent, received = [2 * count for count in counts], [2 * counts[self.rank]] * size

        parts = rows.view(-1).view(torch.uint8), flat.view(torch.uint8)
        exchange = partial(dist.all_to_all_single, *parts, received, sent, group=self._group, async_op=True)
        shares = self._send("allreduce", name, exchange)
        every, sums = flat.new_empty(size, counts[0]), []  # a gather takes equal shares: the last ones are filled up

        def add_and_gather() -> None:
            self._finish(shares, "allreduce", name, "cpu")
            mine = flat.new_zeros(counts[0])
            work = torch.empty(rows.shape[1], dtype=torch.float32)
            half_floats.add_rows(rows, scale, work, mine[: rows.shape[1]])
            parts = list(every.view(torch.uint8)), mine.view(torch.uint8)
            sums.append(self._send("allreduce", name, partial(dist.all_gather, *parts, self._gathers, async_op=True)))

        mark = self._relay.add(shares.is_completed, add_and_gather)

        def wait() -> None:
            self._relay.run(mark)
            self._finish(sums[0], "allreduce", name, "cpu")
            tensor.detach().copy_(every.view(-1)[: flat.numel()].view(tensor.shape))

        return Pending(tensor, wait, lambda: bool(sums) and sums[0].is_completed())

    def _broadcast_(self, tensor: torch.Tensor, root: int, name: str) -> None:
        work = staging.stage(tensor, reducing=False)
        if work.numel():
            send = partial(dist.broadcast, work, root, self._group, async_op=True)
            self._run("broadcast", name, send, self.device.type)
        staging.unstage(tensor, work, reducing=False)

    def _gather_objects(self, obj: Any, name: str) -> list[Any]:
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
        lengths = self._allgather("gather_objects", name, torch.tensor([len(data)])).view(-1).tolist()
        mine = torch.zeros(max(lengths), dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        every = self._allgather("gather_objects", name, mine).numpy()
        return [pickle.loads(memoryview(row)[:length]) for row, length in zip(every, lengths, strict=True)]

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        data = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL) if self.rank == root else b""
        length = torch.tensor([len(data)])
        self._run("broadcast_object", name, lambda: dist.broadcast(length, root, self._group, async_op=True))
        buffer = torch.frombuffer(bytearray(data or int(length)), dtype=torch.uint8)
        self._run("broadcast_object", name, lambda: dist.broadcast(buffer, root, self._group, async_op=True))
        return obj if self.rank == root else pickle.loads(buffer.numpy())

    def _barrier(self, name: str) -> None:
        self._allgather("barrier", name, torch.zeros(1))

    def _allgather(self, kind: str, name: str, mine: torch.Tensor) -> torch.Tensor:
        """The equally long tensors of all ranks, one a row."""
        rows = list(torch.empty(self.size, mine.numel(), dtype=mine.dtype))
        self._run(kind, name, lambda: dist.all_gather(rows, mine, self._group, async_op=True))
        return torch.stack(rows)

    def _run(self, kind: str, name: str, submit: Callable[[], Any], device: str = "cpu") -> None:
        self._relay.run(self._relay.mark())
        self._finish(self._send(kind, name, submit), kind, name, device)

    def _send(self, kind: str, name: str, submit: Callable[[], Any]) -> Any:
        try:
            return submit()
        except (ValueError, RuntimeError) as error:
            raise self._explain(kind, name, error) from error

    def _finish(self, flight: Any, kind: str, name: str, device: str) -> None:
        """Wait at most `timeout_s`. Gloo wakes us; NCCL's own wait returns at once, so its flights are polled."""
        try:
            if device == "cpu":
                flight.wait(timedelta(seconds=self.timeout_s))
                return
            pause, deadline = FIRST_SLEEP_S, time.monotonic() + self.timeout_s
            while not flight.is_completed():
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_SLEEP_S)
                if time.monotonic() > deadline:
                    raise timeout_error(kind, name, self.timeout_s, guard.who(self), self.where)
            flight.wait()
        except (ValueError, RuntimeError) as error:
            raise self._explain(kind, name, error) from error

    def _explain(self, kind: str, name: str, error: Exception) -> CollectiveError:
        """torch's messages name neither rank nor tensor."""
        text = first_line(error)
        if "timed out" in text.lower() or "timeout" in text.lower():
            return timeout_error(kind, name, self.timeout_s, guard.who(self), self.where)
        given = f"{guard.who(self)}: {kind} {name!r} failed at {self.where}"
        if any(word in text for word in ("closed by peer", "reset by peer", "Connection refused", "Broken pipe")):
            return guard.OtherRankEnded(
                f"{given}: another rank ended or does not answer", fix="see that rank's message or the launcher's"
            )
        return CollectiveError(f"{given}: {text}", fix="pass the same name, shape, dtype and op on every rank")

    def abort(self, code: int) -> None:
        # torch has no abort. torchrun and mpirun end the others when one process fails; under srun they see a closed
        # connection at their next collective.
        if self._through_mpi:
            mpi.abort_world(code)
        guard.exit_now(code)

    def close(self) -> None:
        if not self.closed:
            super().close()
            dist.destroy_process_group()
            # Gloo's threads end with the last reference to their group. One that still lets go of a tensor when Python ends
            # would bring the process down, after a job that went well.
            self._group = self._gathers = None


def backends() -> frozenset[str]:
    """Which of gloo and nccl this torch was built with; nothing is initialised."""
    if not dist.is_available():
        return frozenset()
    return frozenset(name for name in ("gloo", "nccl") if getattr(dist, f"is_{name}_available")())
