"""A command line that is ready to be started, as the argv modules make it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True)
class StartLine:
    """What to run.

    Args:
        argv: the program and its arguments.
        env: variables to set besides the ones that are there.
        notes: sentences on options that were added, for the user.
    """

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """As it can be typed into a shell.

        Example:
            >>> str(StartLine(["mpirun", "-np", "2", "python", "a b.py"], {"OMP_NUM_THREADS": "1"}))
            "OMP_NUM_THREADS=1 mpirun -np 2 python 'a b.py'"
        """
        return " ".join([f"{name}={shlex.quote(value)}" for name, value in self.env.items()] + [shlex.join(self.argv)])


def thread_variables(threads: int | None) -> dict[str, str]:
    """The variables that fix the CPU threads of a rank; both, for torchrun sets the first to 1 of its own accord."""
    return {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
