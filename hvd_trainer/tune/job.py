"""The one file of `tune` that starts processes: a trial's command line with a time limit, ended as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

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


def run_job(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> JobEnd:
    """Run a command to its end, in a process group of its own.

    Ctrl-C reaches only us, for the job has a session of its own: it is ended before KeyboardInterrupt goes on.

    Args:
        argv: the command line.
        env: the whole environment.
        timeout_s: seconds, > 0.
    """
    with tempfile.TemporaryFile() as output:  # a pipe would stop a job that writes much
        process = subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: Optional[int] = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(process)
        output.seek(0)
        return JobEnd(code, output.read().decode(errors="replace"))


def end_group(process: subprocess.Popen) -> None:
    """End what is left of the group: horovodrun puts a shell between itself and the ranks, which outlive their launcher."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(TERM_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()
