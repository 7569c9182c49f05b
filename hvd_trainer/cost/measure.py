"""The short measurements that feed the fits: what to time comes as callables, when to stop is agreed over the ranks."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.derived import agree
from hvd_trainer.cost.samples import ALLREDUCE, SEND, MessageSample, StepSample
from hvd_trainer.errors import ConfigError

SHORTEST_S = 2e-3  # an action is repeated until it takes so long: clocks, barriers and schedulers are that coarse
MOST_REPEATS = 1000
FEWEST_ROUNDS, MOST_ROUNDS = 5, 25
# (bytes, how many in a row). Below the border between small and large messages, and from a bucket of the usual size up to
# where bandwidth is all. In a row, as a step sends its buckets: a single message may find room in a buffer on its way, or
# in a shaper's bucket, that a stream does not.
SWEEP = ((4 << 10, 16), (32 << 10, 16), (256 << 10, 8), (1 << 20, 2), (4 << 20, 1))
SENDS = ((256 << 10, 8), (2 << 20, 1))
LONG_S = 0.05  # an action so long needs no second run before the first that counts
Key = TypeVar("Key", bound=Hashable)
StepKey = tuple[str, int, int]  # kind, micro-batch, accumulation


def place(comm: Communicator) -> tuple[int, int]:
    """(nodes, ranks a node) of the job.

    Raises:
        ConfigError: nodes with different numbers of ranks, on all ranks.
    """
    if comm.size != comm.num_nodes * comm.local_size or len({*comm.gather_objects(comm.local_size, "cost.place")}) > 1:
        raise ConfigError(
            f"{comm.size} ranks on {comm.num_nodes} nodes, not the same number on each",
            "as many ranks on every node",
            "start, for example, 2 ranks on each host: -H a:2,b:2",
        )
    return comm.num_nodes, comm.local_size


def in_turns(comm: Communicator, actions: Mapping[Key, Callable[[], object]], budget_s: float) -> dict[Key, tuple[float, ...]]:
    """Time several actions in turns, so that what disturbs the machine for a while disturbs all of them.

    In each round every action is timed once, from a barrier on; very short ones are repeated within. How often, and how
    many rounds, is computed from a first run whose times are reduced over the ranks, hence the same on all of them.

    Args:
        comm: the ranks; all call this with the same keys in the same order.
        actions: what to time. May talk to the other ranks, as long as all do the same.
        budget_s: seconds to be spent in all, about; the fewest rounds are 5.

    Returns:
        For each action the seconds of each round, of the slowest rank.

    Raises:
        CollectiveError: the ranks' keys differ.

    Example:
        >>> from hvd_trainer.comm.single import SingleCommunicator
        >>> times = in_turns(SingleCommunicator(), {"nothing": lambda: None, "sleep": lambda: time.sleep(0.01)}, 0.1)
        >>> len(times["sleep"]) >= 5 and min(times["sleep"]) >= 0.01 > max(times["nothing"])
        True
    """
    agree(comm, tuple(actions), "the actions to time")
    keys = list(actions)
    first = [s for (s,) in _slowest(comm, [[_run(comm, actions[key], 1)] for key in keys])]
    again = [[_run(comm, actions[key], 1) if s < LONG_S else s] for key, s in zip(keys, first)]
    once = [s for (s,) in _slowest(comm, again)]
    repeats = {key: max(1, min(MOST_REPEATS, math.ceil(SHORTEST_S / max(s, 1e-9)))) for key, s in zip(keys, once)}
    round_s = sum(repeats[key] * s for key, s in zip(keys, once))
    rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(budget_s / max(round_s, 1e-9))))
    times: list[list[float]] = [[] for _ in keys]
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()  # or it comes in the middle of one of them; collecting in each round would cost more than the rounds
    try:
        for _ in range(rounds):
            for number, key in enumerate(keys):
                times[number].append(_run(comm, actions[key], repeats[key]))
    finally:
        if was_on:
            gc.enable()
    return {key: tuple(seconds) for key, seconds in zip(keys, _slowest(comm, times))}


def _run(comm: Communicator, action: Callable[[], object], repeats: int) -> float:
    comm.barrier("cost.turn")
    begin = time.perf_counter()
    for _ in range(repeats):
        action()
    return (time.perf_counter() - begin) / repeats


def _slowest(comm: Communicator, times: list[list[float]]) -> list[list[float]]:
    """Of all ranks, entry by entry: the one that the others would wait for."""
    table = torch.tensor(times, dtype=torch.float64, device=comm.device)
    return comm.allreduce_(table, "cost.slowest", op="max").wait().tolist()


def measure_messages(comm: Communicator, buckets: Sequence[int] = (), budget_s: float = 3.0) -> list[MessageSample]:
    """Times of allreduces over a sweep of sizes, and of the buckets of a step one after the other.

    Args:
        comm: at least 2 ranks, as many on each node.
        buckets: bytes of the messages of a step; not empty: they are measured as a step sends them.
        budget_s: seconds, about.

    Returns:
        The same samples on all ranks. Between two ranks on two nodes also broadcasts: bytes in one direction only, which
        tells how much longer they take while others come the other way.

    Raises:
        ConfigError: nodes with different numbers of ranks.
    """
    nodes, ranks_per_node = place(comm)
    sequences = {(ALLREDUCE, (size,) * count) for size, count in SWEEP} | ({(ALLREDUCE, tuple(buckets))} if buckets else set())
    if (nodes, ranks_per_node) == (2, 1):
        sequences |= {(SEND, (size,) * count) for size, count in SENDS}
    # One buffer for all: what matters is the size, and a step's buckets lie side by side like this.
    buffer = torch.zeros(max(sum(-(-size // 4) for size in sizes) for _, sizes in sequences), device=comm.device)
    actions = {key: _messages(comm, buffer, *key) for key in sorted(sequences)}
    times = in_turns(comm, actions, budget_s)
    return [MessageSample(kind, sizes, nodes, ranks_per_node, seconds) for (kind, sizes), seconds in times.items()]


def _messages(comm: Communicator, buffer: torch.Tensor, kind: str, sizes: tuple[int, ...]) -> Callable[[], None]:
    """Sends all, then waits for all, as a reducer does."""
    parts, begin = [], 0
    for size in sizes:
        end = begin - (-size // 4)
        parts.append(buffer[begin:end])
        begin = end
    names = [f"cost.{kind}.{number}" for number in range(len(parts))]

    def allreduce() -> None:
        for pending in [comm.allreduce_(part, name) for part, name in zip(parts, names)]:
            pending.wait()

    def send() -> None:
        for part, name in zip(parts, names):
            comm.broadcast_(part, 0, name)

    return send if kind == SEND else allreduce


def measure_steps(
    comm: Communicator, steps: Mapping[StepKey, Callable[[], object]], budget_s: float = 6.0
) -> list[StepSample]:
    """Times of steps.

    Args:
        comm: the ranks, all with the same keys; as many on each node.
        steps: by (kind, micro_batch, accumulation), see `StepSample`.
        budget_s: seconds, about.

    Raises:
        ConfigError: nodes with different numbers of ranks.
    """
    nodes, ranks_per_node = place(comm)
    times = in_turns(comm, steps, budget_s)
    return [StepSample(*key, nodes, ranks_per_node, seconds) for key, seconds in times.items()]
