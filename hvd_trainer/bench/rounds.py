"""The rounds of `bench step`: every launch once a round, in an order that rotates; what came out, by workload and column."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_trainer.amounts import show_count
from hvd_trainer.bench.columns import Column, Launch, launches, rotated
from hvd_trainer.bench.job import BLOCKS, WORKER, Job, read_answers
from hvd_trainer.bench.start import Ended
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.durations import show_duration
from hvd_trainer.errors import StartError

# (line, command) -> how it ended: the caller knows launchers, this package does not.
Starter = Callable[[str, tuple[str, ...]], Ended]
Say = Callable[[str], None]
MEMORY_BLOCKS = 2


@dataclass
class Measured:
    """Everything that was measured.

    Args:
        num_ranks: ranks of every launch.
        times: {workload: {column: [round: [rank: [ms of each step]]]}}.
        losses: {workload: {column: [rank: [losses of the steps that all columns did]]}}, of the first round.
        memory: {workload: {column: [rank: {"peak_pss_bytes": ..., "peak_rss_bytes": ..., "launcher_pss_bytes": ...}]}}.
        sizes: {workload: {"num_params": ..., "num_tensors": ...}}.
        failed: {column: the end of what it printed}.
        said: {column: what its ranks printed in the first round}, for the library's own lines.
    """

    num_ranks: int
    times: dict[str, dict[str, list]] = field(default_factory=dict)
    losses: dict[str, dict[str, list]] = field(default_factory=dict)
    memory: dict[str, dict[str, list]] = field(default_factory=dict)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    def add(self, answers: Sequence[dict[str, Any]]) -> None:
        """One launch's answers, in rank order."""
        for workload, columns in answers[0].items():
            for column, first in columns.items():
                ranks = [answer[workload][column] for answer in answers]
                if "peak_pss_bytes" in first:
                    keys = ("peak_pss_bytes", "peak_rss_bytes", "launcher_pss_bytes")
                    self.memory.setdefault(workload, {})[column] = [{key: r[key] for key in keys} for r in ranks]
                    continue
                self.times.setdefault(workload, {}).setdefault(column, []).append([r["ms"] for r in ranks])
                self.losses.setdefault(workload, {}).setdefault(column, [r["losses"] for r in ranks])
                self.sizes.setdefault(workload, {key: first[key] for key in ("num_params", "num_tensors")})


@dataclass(frozen=True)
class Plan:
    """What is to be measured.

    Args:
        columns: in the order of the table.
        workloads: each in every launch.
        num_ranks: at least 1.
        threads: CPU threads a rank.
        num_rounds: at least 1.
        memory: one more round, each column and workload in processes of its own.
        for_memory: columns of that round alone.
        worker: the module that each rank runs, as arguments of the interpreter.
        required: names of the columns without which the measurement is to end; the others are left out where they fail.
    """

    columns: tuple[Column, ...]
    workloads: tuple[Workload, ...]
    num_ranks: int
    threads: int
    num_rounds: int
    memory: bool = False
    worker: tuple[str, ...] = WORKER
    required: frozenset[str] = frozenset()
    for_memory: tuple[Column, ...] = ()


def measure(plan: Plan, start: Starter, say: Say) -> Measured:
    """Run all rounds.

    Args:
        plan: what.
        start: starts a launcher.
        say: gets one line a launch, and after each round how many are left and for how long.

    Raises:
        StartError: a required column does not run.
    """
    measured, began_s = Measured(plan.num_ranks), time.monotonic()
    alone = [(launch, workload) for launch in launches((*plan.columns, *plan.for_memory), together=False) for workload in plan.workloads]
    alone = alone if plan.memory else []
    say(how_many(len(launches(plan.columns)), plan.num_rounds, len(alone)))
    for number in range(plan.num_rounds):
        one_round(plan, number, measured, start, say)
        running = sum(not measured.failed.keys() >= {column.name for column in launch.columns} for launch in launches(plan.columns))
        waiting = sum(launch.columns[0].name not in measured.failed for launch, _ in alone)
        rounds_left, round_s = plan.num_rounds - number - 1, (time.monotonic() - began_s) / (number + 1)
        if running and (rounds_left or waiting):
            left_s = round_s * (rounds_left + waiting / running)  # one for memory has fewer steps: it takes this long at most
            say(f"# {show_count(rounds_left * running + waiting, 'launch')} left, {'at most ' if waiting else ''}about {show_duration(left_s)}")
    for launch, workload in alone:
        run_launch(plan, launch, (workload,), measured, start, say, f"memory, {workload.name}", memory=True)
    return measured


def how_many(a_round: int, num_rounds: int, for_memory: int) -> str:
    """What is to be started, as a line before the first launch.

    Example:
        >>> how_many(3, 5, 8)
        '# 23 launches: 3 in each of 5 rounds, 8 for the memory (--no-memory leaves them out); after the first round: how long'
        >>> how_many(1, 1, 0)
        '# 1 launch'
    """
    total = a_round * num_rounds + for_memory
    parts = [f"{a_round} in each of {num_rounds} rounds"] if num_rounds > 1 else [f"{a_round} in the round"] if for_memory else []
    parts += [f"{for_memory} for the memory (--no-memory leaves them out)"] if for_memory else []
    later = "; after the first round: how long" if parts else ""
    return f"# {show_count(total, 'launch')}{': ' if parts else ''}{', '.join(parts)}{later}"


def one_round(plan: Plan, number: int, measured: Measured, start: Starter, say: Say) -> None:
    """Every launch once, beginning with another one in each round.

    Args:
        plan: what.
        number: of the round, from 0.
        measured: gets the samples.
        start, say: as for `measure`.
    """
    for launch in rotated(launches(plan.columns), number):
        run_launch(plan, launch, plan.workloads, measured, start, say, f"round {number + 1} of {plan.num_rounds}")


def run_launch(
    plan: Plan, launch: Launch, workloads: Sequence[Workload], measured: Measured, start: Starter, say: Say, what: str,
    memory: bool = False,
) -> None:  # fmt: skip
    """One launch; its answers go into `measured`. What failed once is not tried again."""
    columns = tuple(column for column in launch.columns if column.name not in measured.failed)
    if not columns:
        return
    launch = Launch(columns)
    say(f"{what}: {launch.name}")
    with tempfile.TemporaryDirectory(prefix="hvd_trainer-bench-") as folder:
        path = Path(folder, "job.json")
        blocks = MEMORY_BLOCKS if memory else BLOCKS
        Job(columns, tuple(workloads), plan.threads, folder, memory, blocks, os.getpid()).write(path)
        ended = start(launch.line, (*plan.worker, str(path)))
        if ended.code == 0:
            measured.add(read_answers(Path(folder), plan.num_ranks))
            for column in columns:
                measured.said.setdefault(column.name, ended.text)
            return
    how = "did not end in time" if ended.code is None else f"ended with exit code {ended.code}"
    if plan.required & {column.name for column in columns}:
        raise StartError(f"{launch.name} {how}:\n{ended.tail}", fix="leave it out: --column NAME for each of the others")
    say(f"{launch.name} {how} and is left out:\n{ended.tail}")
    measured.failed.update({column.name: f"{how}:\n{ended.tail}" for column in columns})
    # A column that failed later has no partner for the last rounds' ratios: it goes as a whole.
    for kind in (measured.times, measured.losses, measured.memory):
        for found in kind.values():
            for column in columns:
                found.pop(column.name, None)
