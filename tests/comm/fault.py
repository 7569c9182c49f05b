"""A job of small steps in which something goes wrong.

As a program, on every rank: python -m tests.comm.fault HOW [arguments of init as name=value ...]
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from hvd_trainer.comm.connect import init
from hvd_trainer.errors import DataError

FAULT_STEP = 3


def fault(how: str, rank: int) -> None:
    """What happens at step 3."""
    if how == "all-config":
        raise DataError("the data set has 0 samples", "at least 1", "check the path")
    if how == "all-crash":
        raise ValueError("a crash on every rank")
    if rank != 1:
        return
    if how == "one-crash":
        raise ValueError("a crash on rank 1")
    if how == "one-config":
        raise DataError("rank 1 has 0 samples", "at least 1", "check the path")
    if how == "exit-7":
        sys.exit(7)
    if how == "exit-0":
        sys.exit(0)
    if how == "raise-exit-7":
        raise SystemExit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "absent":
        time.sleep(60)
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    how, options = sys.argv[1], dict(pair.split("=") for pair in sys.argv[2:])
    if how == "never-starts" and "1" in map(os.environ.get, ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "RANK")):
        time.sleep(60)
    comm = init(**options)
    for step in range(10):
        comm.where = f"step {step}"
        if step == FAULT_STEP:
            print(f"fault at {time.time():.2f}", flush=True)
            fault(how, comm.rank)
        comm.allreduce_(torch.ones(4), "grad").wait()
        comm.barrier()
        time.sleep(0.02)
    if how == "late-work" and comm.rank == 0:
        time.sleep(4)  # the other ranks have ended; this one still writes something, and may
    if comm.rank == 0:
        print("came to the end", flush=True)


if __name__ == "__main__":
    main()
