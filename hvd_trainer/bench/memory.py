"""What a process holds: its proportional share (PSS), sampled while it works, its peak resident set (RSS), and its launcher's PSS."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Optional

EVERY_S = 0.01
ROLLUP = Path("/proc/self/smaps_rollup")


def pss_bytes(text: str) -> int:
    """The line Pss of a smaps_rollup: pages that k processes share count 1/k, so shared memory is counted once.

    Example:
        >>> pss_bytes("55bd-7ffd ---p 00000000 00:00 0 [rollup]\\nRss: 1768 kB\\nPss: 227 kB\\n")
        232448
    """
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def peak_rss_bytes() -> int:
    """The most that was ever resident in this process, each page counted whole."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def parent_of(stat: str) -> int:
    """The parent's process number in a line of /proc/PID/stat; the name before it may have any character.

    Example:
        >>> parent_of("42 (a) b) S 7 42 42 0")
        7
    """
    return int(stat.rpartition(")")[2].split()[1])


def launcher_pss_bytes(starter: int) -> Optional[int]:
    """PSS of the processes between this one and the one that started the launch: launchers take memory too, and torchrun's
    shares the pages of torch with its ranks, whose own PSS is the smaller for it.

    Args:
        starter: process number of the one above the launcher, which does not count.

    Returns:
        None where `starter` is not above this process: it runs on another machine.
    """
    found, pid = 0, os.getppid()
    while pid != starter:
        if pid <= 1:
            return None
        found += pss_bytes(Path(f"/proc/{pid}/smaps_rollup").read_text())
        pid = parent_of(Path(f"/proc/{pid}/stat").read_text())
    return found


class PeakPss:
    """Samples the PSS from a thread, as a context manager; `bytes` has the largest sample.

    Reading it takes the kernel a millisecond or more, so it is not done in the runs whose time counts.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> PeakPss:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._sample()

    def _sample(self) -> None:
        self.bytes = max(self.bytes, pss_bytes(ROLLUP.read_text()))
