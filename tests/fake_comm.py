"""Several ranks in one process: one thread a rank, collectives through a table, so that N ranks take milliseconds.

Stricter than an engine: a tensor that is changed between `allreduce_` and `wait()` fails the test, and so does a rank that
the others wait for in vain.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hvd_trainer.comm import topology
from hvd_trainer.comm.api import Communicator, Pending
from hvd_trainer.comm.bridge import Bridge
from hvd_trainer.errors import CollectiveError, CollectiveTimeout

PATIENCE_S = 20.0


class OtherRankFailed(CollectiveError):
    """Another rank raised while this one waited for it."""


class Table:
    """Where the ranks put what they send; one key a collective."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.failed = False
        self._changed = threading.Condition()
        self._slots: dict[tuple, dict[int, Any]] = {}

    def put(self, key: tuple, rank: int, value: Any) -> None:
        with self._changed:
            self._slots.setdefault(key, {})[rank] = value
            self._changed.notify_all()

    def take(self, key: tuple, ranks: Sequence[int] = ()) -> list[Any]:
        """What all ranks, or these, sent, in their order."""
        ranks = ranks or range(self.size)
        with self._changed:
            here = self._changed.wait_for(lambda: self.failed or len(self._slots[key]) == len(ranks), PATIENCE_S)
            if len(self._slots[key]) == len(ranks):
                return [self._slots[key][rank] for rank in ranks]
            if not here:
                raise CollectiveTimeout(f"only ranks {sorted(self._slots[key])} came to {key}")
            raise OtherRankFailed(f"another rank failed while {key} was under way")

    def fail(self) -> None:
        with self._changed:
            self.failed = True
            self._changed.notify_all()


class ThreadCommunicator(Communicator):
    """One rank of `run_threads`. `sent` lists the names of its allreduces in the order of sending."""

    engine = "threads"
    backend = "none"
    has_bridges = True

    def __init__(self, rank: int, table: Table, hosts: Sequence[Any]) -> None:
        super().__init__(topology.from_hosts(rank, hosts), torch.device("cpu"), timeout_s=PATIENCE_S, checked=False)
        places = [topology.from_hosts(r, hosts) for r in range(table.size)]
        self._peers = [place.rank for place in sorted(places, key=lambda p: p.node) if place.local_rank == self.local_rank]
        self.sent: list[str] = []
        self._table = table
        self._calls: dict[tuple[str, str], int] = {}

    def exchange(self, kind: str, name: str, value: Any, ranks: Sequence[int] = ()) -> Callable[[], list[Any]]:
        number = self._calls[kind, name] = self._calls.get((kind, name), 0) + 1
        key = (kind, name, number, *ranks)
        self._table.put(key, self.rank, value)
        return lambda: self._table.take(key, ranks)

    def bridge(self, num_carriers: int) -> Bridge | None:
        return ThreadBridge(self, self._peers) if self.local_rank < num_carriers else None

    def _allreduce_(self, tensor: torch.Tensor, name: str, op: str, scale: float) -> Pending:
        self.sent.append(name)
        before = tensor.detach().clone()
        take = self.exchange("allreduce", name, before)

        def wait() -> None:
            parts = take()
            assert same_bits(tensor, before), f"{name} was changed while it was under way"
            work = torch.stack([part.float() if part.dtype in (torch.float16, torch.bfloat16) else part for part in parts])
            result = work.sum(0) if op == "sum" else work.amax(0) if op == "max" else work.amin(0)
            tensor.detach().copy_(result if scale == 1.0 else result * scale)

        return Pending(tensor, wait)

    def _broadcast_(self, tensor: torch.Tensor, root: int, name: str) -> None:
        tensor.copy_(self.exchange("broadcast", name, tensor.clone())()[root])

    def _gather_objects(self, obj: Any, name: str) -> list[Any]:
        return [pickle.loads(data) for data in self.exchange("gather", name, pickle.dumps(obj))()]

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        return pickle.loads(self.exchange("object", name, pickle.dumps(obj))()[root])  # nothing is shared, as in a job

    def _barrier(self, name: str) -> None:
        self.exchange("barrier", name, None)()

    def abort(self, code: int) -> None:
        raise SystemExit(code)


class ThreadBridge(Bridge):
    """The bridge of threads on pretended nodes."""

    def __init__(self, comm: ThreadCommunicator, ranks: list[int]) -> None:
        self._comm, self._ranks = comm, ranks

    def sum_(self, tensor: torch.Tensor, name: str) -> None:
        self._comm.sent.append(name)
        parts = self._comm.exchange("bridge", name, tensor.clone(), self._ranks)()
        total = parts[0].float() if tensor.itemsize == 2 else parts[0]
        for part in parts[1:]:
            total = total + part
        tensor.copy_(total)

    def gather(self, numbers: Sequence[float], name: str) -> list[list[float]]:
        return self._comm.exchange("bridge gather", name, list(numbers), self._ranks)()


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8)

    return torch.equal(raw(a), raw(b))


def pretended_hosts(size: int) -> list[int]:
    """Each rank's host; tests that should see several nodes replace this."""
    return [0] * size


def run_threads(
    size: int, function: Callable[[ThreadCommunicator], Any], *, catch: bool = False, hosts: Sequence[Any] | None = None
) -> list[Any]:
    """Call `function(comm)` on every rank and return the results in rank order.

    An exception on a rank is raised here; with `catch` it is that rank's result instead. `hosts` names each rank's host, so that
    there are several nodes; without it, as `pretended_hosts` says: one.
    """
    table, hosts = Table(size), hosts or pretended_hosts(size)
    results: list[Any] = [None] * size

    def rank_main(rank: int) -> None:
        try:
            results[rank] = function(ThreadCommunicator(rank, table, hosts))
        except BaseException as error:
            results[rank] = error
            table.fail()

    threads = [threading.Thread(target=rank_main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not catch:
        errors = [result for result in results if isinstance(result, BaseException)]
        causes = [error for error in errors if not isinstance(error, OtherRankFailed)]
        if errors:
            raise (causes or errors)[0]
    return results
