"""Which MPI a version text belongs to; pure text, so that a login node without any MPI can import it."""

from __future__ import annotations

import re
from typing import NamedTuple

# Order matters: Intel MPI and Spectrum MPI are built on the others and may mention them.
_FLAVOURS = (
    ("Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\S+)", re.S)),
    ("Spectrum MPI", re.compile(r"IBM Spectrum MPI\)?\s+(\S+)")),
    ("Open MPI", re.compile(r"(?:Open MPI\)?|OpenRTE\)?),?\s+v?(\d[\w.]*)")),
    ("MPICH", re.compile(r"HYDRA build details.*?Version:\s*(\S+)", re.S)),
    ("MPICH", re.compile(r"MPICH(?: Version)?:?\s+v?(\d[\w.]*)")),
)


class MpiFlavour(NamedTuple):
    """Name and version of an MPI; both empty when the text named none that is known."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip() or "unknown MPI"


def parse(text: str) -> MpiFlavour:
    """Name the MPI from `mpirun --version` or `MPI_Get_library_version`.

    Args:
        text: the output, any number of lines.

    Returns:
        The flavour; `MpiFlavour("", "")` when none is recognised. MPICH's launcher calls itself HYDRA and,
        since MPICH 5, nothing else.

    Example:
        >>> parse("mpirun (Open MPI) 5.0.11")
        MpiFlavour(name='Open MPI', version='5.0.11')
    """
    for name, pattern in _FLAVOURS:
        found = pattern.search(text)
        if found:
            return MpiFlavour(name, found.group(1).rstrip(",."))
    return MpiFlavour("", "")
