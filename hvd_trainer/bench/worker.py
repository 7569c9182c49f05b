"""What each rank of a launch runs: `python -m hvd_trainer.bench.worker JOB.json`."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable
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
        self._step = find_way(column.way)(task, column, meeting)
        self._ms: list[float] = []
        self._losses: list[float] = []

    def warm_up(self, num_steps: int) -> None:
        """Steps whose losses are kept and whose times are not."""
        for _ in range(num_steps):
            self._losses.append(float(self._step(self._batch()).detach()))

    def run(self, num_steps: int) -> None:
        """Some cold steps and `num_steps` timed ones."""
        loss = None
        for _ in range(COLD_STEPS):
            loss = self._step(self._batch())
        before = time.perf_counter()
        for _ in range(num_steps):
            loss = self._step(self._batch())
            now = time.perf_counter()
            self._ms.append((now - before) * 1e3)
            before = now
        self._losses.append(float(loss.detach()))

    def answer(self) -> dict[str, Any]:
        """For the rank's file; microseconds are rounded to a hundredth."""
        return {"ms": [round(ms, 5) for ms in self._ms], "losses": self._losses, **self.more}

    def _batch(self) -> Any:
        batch = self._batches[self._next]
        self._next = (self._next + 1) % len(self._batches)
        return batch


def find_way(name: str) -> Callable[..., ways.Step]:
    """A way of ours by its name, or anybody's as "module:function"."""
    if ":" not in name:
        return ways.BY_NAME[name]
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    main(Job.read(Path(sys.argv[1])))
