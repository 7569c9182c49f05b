"""Memory that the ranks of one node share, with counters in it by which they wait for each other.

The memory is an anonymous file (memfd): it has no name that a killed rank could leave behind, and /dev/shm, which is
64 MB in many containers, does not limit it. The other ranks open it through /proc while its maker keeps it open.

Counters are plain 8-byte stores and loads. That is enough on x86-64, which keeps the stores of a core in order: who sees a
counter sees what was written before it. Elsewhere nothing is shared, and sums travel as messages.
"""

from __future__ import annotations

import mmap
import os
import platform
import time
import weakref
from collections.abc import Sequence
from typing import Optional

import psutil
import torch

from hvd_trainer import cores
from hvd_trainer.comm import guard
from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.watchdog import left_error, timeout_error

ALIGN_BYTES = 64  # a cache line: two ranks never write to the same one
LINE = ALIGN_BYTES // 8
SPINS = 4_000  # looks at a counter before the core is given away: about 0.2 ms
YIELDS = 1_000  # times the core is only offered to others (0.3 us each where nobody takes it), before the waits that sleep
FIRST_SLEEP_S, LONGEST_SLEEP_S = 20e-6, 500e-6
ROOM = 0.8  # of the memory that is free now, at most this share is taken


class NodeMemory:
    """One block of memory, the same on all ranks of this node; every rank carves the same pieces in the same order.

    Args:
        descriptor: of the memfd.
        size_bytes: as `needed_bytes` says.
        comm: the ranks.
        num_counters: counters of each rank, all 0 at first; they only grow.
    """

    def __init__(self, descriptor: int, size_bytes: int, comm: Communicator, num_counters: int) -> None:
        self._map = mmap.mmap(descriptor, size_bytes)
        self._comm, self._num_counters = comm, num_counters
        self._cells = memoryview(self._map).cast("q")
        self._mine = [_cell(comm.local_rank, counter, num_counters) for counter in range(num_counters + 1)]
        self._others = [
            [_cell(r, counter, num_counters) for r in range(comm.local_size) if r != comm.local_rank]
            for counter in range(num_counters + 1)
        ]
        self._spins = SPINS if comm.local_size <= len(cores.my_cores()) or _pinned() else 0
        self._next = counters_bytes(comm.local_size, num_counters)
        # When the job ends here, or when nobody holds this any more: it is then unmapped.
        comm.on_close.append(weakref.finalize(self, _say_left, self._cells, self._mine[num_counters], comm.rank, os.getpid()))

    def tensor(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """The next piece, one-dimensional, zero at first."""
        start = self._next
        self._next += padded(numel * dtype.itemsize)
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=numel, offset=start)

    def post(self, counter: int, value: int) -> None:
        """Set this rank's counter; whoever sees it sees everything that this rank wrote before."""
        self._cells[self._mine[counter]] = value

    def reached(self, counter: int, value: int) -> bool:
        """Whether the other ranks' counters are all at `value` or beyond."""
        cells = self._cells
        for at in self._others[counter]:
            if cells[at] < value:
                return False
        return True

    def wait(self, counter: int, value: int, what: str) -> None:
        """Return when the other ranks' counters are all at `value` or beyond.

        Args:
            counter: 0 .. num_counters - 1.
            value: that is waited for.
            what: for the message.

        Raises:
            CollectiveTimeout: after the communicator's `timeout_s`.
            CollectiveError: a rank that is waited for has ended its program.
        """
        cells = self._cells
        for at in self._others[counter]:
            if cells[at] < value:
                self._wait_for(at, at + (self._num_counters - counter) * LINE, value, what)

    def _wait_for(self, at: int, left: int, value: int, what: str) -> None:
        cells = self._cells
        for _ in range(self._spins):
            if cells[at] >= value:
                return
        pause, deadline = FIRST_SLEEP_S, time.monotonic() + self._comm.timeout_s
        for _ in range(YIELDS):
            os.sched_yield()  # time.sleep(0) sleeps, for 50 us and more
            if cells[at] >= value:
                return
        while cells[at] < value:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_SLEEP_S)
            if cells[left] and cells[at] < value:  # in this order: it may have come first, and left then
                raise left_error("gradient sum", what, f"rank {cells[left] - 1}", guard.who(self._comm), self._comm.where)
            if time.monotonic() > deadline:
                raise timeout_error("gradient sum", what, self._comm.timeout_s, guard.who(self._comm), self._comm.where)


def open_node_memory(comm: Communicator, piece_bytes: Sequence[int], num_counters: int, name: str) -> tuple[Optional[NodeMemory], str]:
    """Memory shared by all ranks of the node, or None and the reason, the same on all ranks of the job. A collective.

    Args:
        comm: the ranks.
        piece_bytes: size of each piece that will be carved, >= 0; equal on the ranks of a node.
        num_counters: see `NodeMemory`.
        name: for the collectives.
    """
    size_bytes = counters_bytes(comm.local_size, num_counters) + sum(padded(size) for size in piece_bytes)
    is_maker = comm.local_rank == 0
    descriptor, problem = -1, obstacle(comm.device)
    if is_maker and not problem:
        descriptor, problem = _make(size_bytes)
    offers = comm.gather_objects((comm.node, is_maker, os.getpid(), descriptor, problem), f"{name}.offer")
    problem = next((said for *_, said in offers if said), "")
    memory = None
    if not problem:
        pid, theirs = next((pid, number) for node, makes, pid, number, _ in offers if node == comm.node and makes)
        memory, problem = _attach(pid, theirs, size_bytes, comm, num_counters)
    problems = comm.gather_objects(problem, f"{name}.open")
    if descriptor >= 0:
        os.close(descriptor)
    problem = next((said for said in problems if said), "")
    return (None, problem) if problem else (memory, "")


def obstacle(device: torch.device) -> str:
    """Why memory cannot be shared by the ranks here; "" where it can.

    Example:
        >>> obstacle(torch.device("cuda"))
        'the gradients are on cuda'
    """
    if device.type != "cpu":
        return f"the gradients are on {device.type}"
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"the order of stores on {platform.machine()} is not relied on"
    if not hasattr(os, "memfd_create"):
        return "this system has no memfd"
    return ""


def free_bytes() -> int:
    """Memory that can still be taken here: what the machine has free, or what is left below the control group's limit."""
    free = psutil.virtual_memory().available
    left = cores.cgroup_memory_left()
    return free if left is None else min(free, left)


def counters_bytes(local_size: int, num_counters: int) -> int:
    """Bytes before the first piece."""
    return ALIGN_BYTES * local_size * (num_counters + 1)


def padded(size_bytes: int) -> int:
    """Up to the next cache line.

    Example:
        >>> padded(0), padded(1), padded(64)
        (0, 64, 64)
    """
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES


def _cell(local_rank: int, counter: int, num_counters: int) -> int:
    return (local_rank * (num_counters + 1) + counter) * LINE


def _say_left(cells: memoryview, at: int, rank: int, pid: int) -> None:
    """Whoever still waits for this rank need not; a process that it has forked leaves nothing."""
    if os.getpid() == pid:
        cells[at] = rank + 1


def _pinned() -> bool:
    """Whether the launcher gave this rank cores of its own, so that those it may use are not all there are."""
    return len(cores.my_cores()) < (psutil.cpu_count(logical=False) or 1)


def _make(size_bytes: int) -> tuple[int, str]:
    if size_bytes > ROOM * free_bytes():
        return -1, f"{size_bytes / 2**20:.0f} MiB do not fit into the {free_bytes() / 2**20:.0f} MiB that are free"
    try:
        descriptor = os.memfd_create("hvd_trainer", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, size_bytes)
    except OSError as error:
        return -1, f"no shared memory: {error}"
    return descriptor, ""


def _attach(pid: int, number: int, size_bytes: int, comm: Communicator, num_counters: int) -> tuple[Optional[NodeMemory], str]:
    try:
        descriptor = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:  # another user's, or another container's process
        return None, f"rank {comm.rank} cannot open the memory of its node's first rank: {error}"
    try:
        if os.fstat(descriptor).st_size != size_bytes:  # the same number in another container's process
            return None, f"rank {comm.rank} does not find the memory of its node's first rank"
        return NodeMemory(descriptor, size_bytes, comm, num_counters), ""
    except OSError as error:
        return None, f"rank {comm.rank} cannot map the shared memory: {error}"
    finally:
        os.close(descriptor)
