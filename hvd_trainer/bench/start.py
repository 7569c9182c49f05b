"""The one file of `bench` that starts processes: a launcher's command line with a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LAUNCH_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Ended:
    """How a launch ended.

    Args:
        code: exit code; None: not within the limit, and killed.
        text: both streams of all ranks.
    """

    code: int | None
    text: str

    @property
    def tail(self) -> str:
        """The last lines, for a message."""
        return "\n".join(self.text.rstrip().splitlines()[-40:])


def run(argv: Sequence[str], env: Mapping[str, str], timeout_s: float = LAUNCH_TIMEOUT_S) -> Ended:
    """Run a launcher to its end, in a process group of its own that is killed as a whole where it does not end.

    Args:
        argv: the command line.
        env: the whole environment.
        timeout_s: seconds, > 0.
    """
    process = subprocess.Popen(
        argv,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill(process)
        return Ended(None, process.communicate()[0])
    except BaseException:  # Ctrl-C reaches only us: the launcher has a session of its own
        kill(process)
        process.wait()
        raise
    return Ended(process.returncode, text)


def kill(process: subprocess.Popen) -> None:
    """The whole group: horovodrun puts a shell between itself and the ranks, which outlive their launcher."""
    try:
        os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its ranks, which have groups of their own
        process.wait(5.0)
    except ProcessLookupError:
        return
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
