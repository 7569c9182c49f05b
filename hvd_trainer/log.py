"""Lines for people: what the job decided, once per job, without touching the root logger."""

from __future__ import annotations

import sys


def say(text: str, *, rank: int = 0) -> None:
    """Print whole lines to stdout on rank 0 only, at once (launchers cut buffered lines in pieces).

    Args:
        text: one or more lines, without the trailing newline.
        rank: the caller's rank; anything but 0 prints nothing.
    """
    if rank == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def warn(text: str, *, rank: int = 0) -> None:
    """As `say`, to stderr: for what the user should change."""
    if rank == 0:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
