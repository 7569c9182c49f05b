"""How far the compiler is: one moving line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TextIO

_PERCENT = re.compile(r"^\s*\[\s*(\d{1,3})%\]")
_PLAIN_LINE_EVERY_S = 20.0


class Progress:
    """Turn the output of make into elapsed seconds and a percentage.

    Args:
        out: where to write.
        clock: seconds, monotonic.
        terminal: whether `out` can rewrite a line; None asks it.
    """

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic, terminal: bool | None = None) -> None:
        self._out, self._clock = out, clock
        self._terminal = out.isatty() if terminal is None else terminal
        self._start = self._last = clock()
        self._percent = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def see(self, line: str) -> None:
        """Take one line of the build's output."""
        found = _PERCENT.match(line)
        if found:
            # Several targets count from 0 each; a bar that runs backwards would only worry people.
            self._percent = max(self._percent, min(int(found.group(1)), 100))
        self.tick()

    def tick(self) -> None:
        """Show the time although nothing was said."""
        if self._clock() - self._last < (0.5 if self._terminal else _PLAIN_LINE_EVERY_S):
            return
        self._last = self._clock()
        text = f"  building Horovod: {self.elapsed_s:4.0f} s, {self._percent:3d} %"
        self._out.write(f"\r{text}" if self._terminal else f"{text}\n")
        self._out.flush()

    def done(self) -> None:
        """End the moving line."""
        if self._terminal:
            self._out.write("\r" + " " * 50 + "\r")
            self._out.flush()
