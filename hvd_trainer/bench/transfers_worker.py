"""What each rank of `bench allreduce` runs: `python -m hvd_trainer.bench.transfers_worker JOB.json`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hvd_trainer.bench import transfers, ways
from hvd_trainer.bench.columns import Column, rotated
from hvd_trainer.bench.job import Job, write_answer

Call = Callable[[], Any]


def main(job: Job) -> None:
    """Measure all sizes of the job and write this rank's answer, in the form of `worker`."""
    torch.set_num_threads(job.threads)
    meeting = ways.meet(job.columns)
    answer = {}
    for workload in job.workloads:
        num_floats = transfers.size_bytes(workload.name) // 4
        answer[workload.name] = measure(job, num_floats, workload.steps, workload.warmup, meeting)
    write_answer(Path(job.out), meeting.rank, answer)
    meeting.barrier()
    meeting.close()


def measure(job: Job, num_floats: int, steps: int, warmup: int, meeting: ways.Meeting) -> dict[str, Any]:
    """{column: times, and the sum of rank + 1 over all ranks as it came out} for one size.

    Zeros are sent while the time runs: a sum in place would grow until it is infinite.
    """
    tensor = torch.empty(num_floats)
    calls = {column.name: make(column, tensor, meeting) for column in job.columns}
    found = {name: {"ms": [], "losses": [], "num_params": num_floats, "num_tensors": 1} for name in calls}
    for name, call in calls.items():
        tensor.fill_(meeting.rank + 1)
        meeting.barrier()
        call()
        found[name]["losses"] = [float(tensor[0]), float(tensor[-1])]
        tensor.zero_()
        for _ in range(warmup):
            call()
    each = -(-steps // job.blocks)
    for block in range(job.blocks):
        for name in rotated(list(calls), block):
            meeting.barrier()
            found[name]["ms"].extend(timed(calls[name], each))
    for answers in found.values():
        answers["ms"] = [float(f"{ms:.5g}") for ms in answers["ms"]]
    return found


def timed(call: Call, times: int) -> list[float]:
    """Milliseconds of each call, one after the other; two before them do not count."""
    call()
    call()
    stamps = [time.perf_counter()]
    for _ in range(times):
        call()
        stamps.append(time.perf_counter())
    return [(b - a) * 1e3 for a, b in zip(stamps, stamps[1:])]


def make(column: Column, tensor: torch.Tensor, meeting: ways.Meeting) -> Call:
    """What is timed."""
    if column.way == "ours":
        comm = meeting.handle
        return lambda: comm.allreduce_(tensor, "bench").wait()
    if column.way == "copy":
        target = torch.empty_like(tensor)
        return lambda: target.copy_(tensor)
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    memory = [MPI.memory.fromaddress(tensor.data_ptr(), tensor.numel() * 4), tensor.numel(), MPI.FLOAT]
    return lambda: world.Allreduce(MPI.IN_PLACE, memory)


if __name__ == "__main__":
    main(Job.read(Path(sys.argv[1])))
