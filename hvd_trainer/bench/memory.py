"""What a process holds: its proportional share (PSS), sampled while it works, and its peak resident set (RSS)."""

from __future__ import annotations

import resource
import threading
from pathlib import Path

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
