"""What each rank of a launch runs: `python -m hvd_trainer.bench.worker JOB.json`."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hvd_trainer.bench import memory, models, ways
from hvd_trainer.bench.columns import Column, rotated
from hvd_trainer.bench.job import Job, write_answer
from hvd_trainer.bench.workloads import Workload

COLD_STEPS = 2  # at the beginning of each turn, not counted: another column's data are in the caches


def main(job: Job) -> None:
    """Measure all workloads of the job and write this rank's answer."""
    torch.set_num_threads(job.threads)
    meeting = ways.meet(job.columns)
    answer = {workload.name: measure(job, workload, meeting) for workload in job.workloads}
    write_answer(Path(job.out), meeting.rank, answer)
    meeting.barrier()
    meeting.close()


def measure(job: Job, workload: Workload, meeting: ways.Meeting) -> dict[str, Any]:
    """{column: its samples, losses and memory} for one workload."""
    tracks = [Track(column, workload, meeting) for column in job.columns]
    if job.memory:
        with memory.PeakPss() as peak:
            take_turns(tracks, workload, job.blocks, meeting.barrier)
        for track in tracks:
            track.more |= {"peak_pss_bytes": peak.bytes, "peak_rss_bytes": memory.peak_rss_bytes()}
            track.more["launcher_pss_bytes"] = memory.launcher_pss_bytes(job.starter)
        meeting.barrier()  # pages are shared with ranks that still run
    else:
        take_turns(tracks, workload, job.blocks, meeting.barrier)
    found = {track.column.name: track.answer() for track in tracks}
    del tracks
    gc.collect()
    return found


def take_turns(tracks: list[Track], workload: Workload, blocks: int, barrier: Callable[[], None]) -> None:
    """Warm up each column, then let them measure in turns, each time beginning with another one."""
    for track in tracks:
        barrier()
        track.warm_up(workload.warmup)
    each = -(-workload.steps // blocks)
    for block in range(blocks):
        for track in rotated(tracks, block):
            gc.collect()
            barrier()
            track.run(each)


class Track:
    """One column on one workload: its own model, and what was measured.

    Args:
        column: what is measured.
        workload: on what.
        meeting: the ranks.
    """

    def __init__(self, column: Column, workload: Workload, meeting: ways.Meeting) -> None:
        self.column = column
        task = models.build(workload, meeting.rank, meeting.size)
        self.more: dict[str, Any] = {"num_params": task.num_params, "num_tensors": task.num_tensors}
        self._batches, self._next = task.batches, 0
        made = find_way(column.way)(task, column, meeting)
        self._loop = made.loop if hasattr(made, "loop") else partial(step_by_step, made)
        self._ms: list[float] = []
        self._losses: list[float] = []

    def warm_up(self, num_steps: int) -> None:
        """Steps whose losses are kept and whose times are not."""
        self._loop(self._take(num_steps), self._losses)

    def run(self, num_steps: int) -> None:
        """Some cold steps and `num_steps` timed ones."""
        stamps = self._loop(self._take(COLD_STEPS + num_steps), None)[COLD_STEPS - 1 :]
        self._ms.extend((b - a) * 1e3 for a, b in zip(stamps, stamps[1:]))

    def answer(self) -> dict[str, Any]:
        """For the rank's file: times with five digits, and a loss after the last step too."""
        self._loop(self._take(1), self._losses)
        return {"ms": [float(f"{ms:.5g}") for ms in self._ms], "losses": self._losses, **self.more}

    def _take(self, number: int) -> list[Any]:
        taken = [self._batches[(self._next + i) % len(self._batches)] for i in range(number)]
        self._next += number
        return taken


def step_by_step(step: ways.Step, batches: list[Any], losses: list[float] | None) -> list[float]:
    """The loop of ways that have none of their own, in the form of `ways.Loop`."""
    stamps = []
    for batch in batches:
        loss = step(batch)
        stamps.append(time.perf_counter())
        if losses is not None:
            losses.append(float(loss.detach()))
    return stamps


def find_way(name: str) -> ways.Way:
    """A way of ours by its name, or anybody's as "module:function"."""
    if ":" not in name:
        return ways.BY_NAME[name]
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main(Job.read(Path(sys.argv[1])))
