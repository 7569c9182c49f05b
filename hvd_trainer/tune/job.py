"""The one file of `tune` that starts processes: a trial's command line with a time limit, ended as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

LOOK_S = 0.1  # between two looks whether to stop
TERM_S = 5.0  # between SIGTERM, with which mpirun ends its ranks, and SIGKILL


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    Args:
        code: exit code of the launcher, 128 + N or -N where signal N ended it; None: not within the limit, and killed.
        text: both streams of all ranks.
    """

    code: Optional[int]
    text: str

    @property
    def last_lines(self) -> str:
        """For a message."""
        return "\n".join(self.text.rstrip().splitlines()[-15:])


def run_job(
    argv: Sequence[str], env: Mapping[str, str], timeout_s: float, cores: Collection[int] = (), stop: Optional[threading.Event] = None
) -> JobEnd:
    """Run a command to its end, in a process group of its own.

    Ctrl-C reaches only us, for the job has a session of its own: it is ended before KeyboardInterrupt goes on.

    Args:
        argv: the command line.
        env: the whole environment.
        timeout_s: seconds, > 0.
        cores: logical processors that it may use; (): all of ours.
        stop: when set, the job is ended and KeyboardInterrupt raised; for threads, which Ctrl-C does not reach.
    """
    with tempfile.TemporaryFile() as output:  # a pipe would stop a job that writes much
        with confined(cores):
            process = subprocess.Popen(
                list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            code = wait(process, timeout_s, stop)
        finally:
            end_group(process)
        output.seek(0)
        return JobEnd(code, output.read().decode(errors="replace"))


def wait(process: subprocess.Popen, timeout_s: float, stop: Optional[threading.Event]) -> Optional[int]:
    """The exit code; None: it was not over within the limit."""
    until_s = time.monotonic() + timeout_s
    while (left_s := until_s - time.monotonic()) > 0:
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        try:
            return process.wait(left_s if stop is None else min(LOOK_S, left_s))
        except subprocess.TimeoutExpired:
            continue
    return None


@contextlib.contextmanager
def confined(cores: Collection[int]) -> Iterator[None]:
    """What this thread starts inherits these processors; other threads keep theirs."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def end_group(process: subprocess.Popen) -> None:
    """End what is left of the group: horovodrun puts a shell between itself and the ranks, which outlive their launcher.

    Another Ctrl-C meanwhile ends it at once, and goes on when nothing is left: it must not leave the job behind.
    """
    again: Optional[KeyboardInterrupt] = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(TERM_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt as error:
            again = error
    process.wait()
    if again is not None:
        raise again
