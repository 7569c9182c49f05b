"""Which libraries are measured, and which of them can share one launch (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from hvd_trainer.errors import ConfigError

COMPUTE = "compute"


@dataclass(frozen=True)
class Column:
    """One way to train, with the launcher that starts it.

    Args:
        name: in the tables and on the command line.
        way: function of `ways` that makes its step.
        line: which command line starts it, one of `LINES`.
        about: half a sentence for the table of columns.
        engine: of `ht.init`, for our own columns.
        options: arguments of `ht.DistributedOptimizer` besides the defaults, for our own columns.
        shares: whether it runs in one process with others of the same line, in turns of some steps each. Not for what
            has a background thread or sets variables: it would disturb its neighbours.
        syncs: whether its ranks average, so that its losses must be those of the others.
    """

    name: str
    way: str
    line: str
    about: str
    engine: str = ""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    shares: bool = False
    syncs: bool = True


LINES = ("mpirun", "mpirun-best", "horovodrun-mpi", "horovodrun-gloo", "torchrun")
COLUMNS = (
    Column(COMPUTE, "compute", "mpirun", "the bound: each rank alone, in one process with ours-mpi", shares=True, syncs=False),
    Column("ours-mpi", "ours", "mpirun", "hvd_trainer, engine mpi", "mpi", shares=True),
    Column("raw-mpi", "raw_mpi", "mpirun", "flat buckets, MPI_Allreduce in the hooks, nothing else", shares=True),
    Column("compute-alone", "compute", "mpirun", "the bound in a process without any engine", syncs=False),
    Column("ours-horovod-mpi", "ours", "horovodrun-mpi", "hvd_trainer, engine horovod over MPI", "horovod"),
    Column("ours-horovod-gloo", "ours", "horovodrun-gloo", "hvd_trainer, engine horovod over Gloo", "horovod"),
    Column("ours-horovod-best", "ours", "mpirun-best", "hvd_trainer, engine horovod, best settings", "horovod"),
    Column("ours-torch", "ours", "torchrun", "hvd_trainer, engine torch over Gloo", "torch"),
    Column("hvd-mpi", "horovod", "horovodrun-mpi", "hvd.DistributedOptimizer, defaults, MPI"),
    Column("hvd-gloo", "horovod", "horovodrun-gloo", "hvd.DistributedOptimizer, defaults, Gloo"),
    Column("hvd-best", "horovod", "mpirun-best", "hvd.DistributedOptimizer, bound to cores, yielding, cycle 0.1 ms"),
    Column("ddp-gloo", "ddp", "torchrun", "torch DistributedDataParallel, Gloo"),
)
# Measured where they are named, and in the record for memory: what of the difference to DDP is the launcher's.
FOR_MEMORY = (Column("ddp-gloo-mpirun", "ddp", "mpirun", "torch DistributedDataParallel, Gloo, started by mpirun"),)
BY_NAME = {column.name: column for column in (*COLUMNS, *FOR_MEMORY)}


@dataclass(frozen=True)
class Launch:
    """Columns that one process a rank measures.

    Args:
        columns: all with the same line.
    """

    columns: tuple[Column, ...]

    @property
    def line(self) -> str:
        """Which command line starts it."""
        return self.columns[0].line

    @property
    def name(self) -> str:
        """The columns' names."""
        return "+".join(column.name for column in self.columns)


def parse(text: str) -> Column:
    """A column from the command line.

    Args:
        text: a name; for our own columns with options of `ht.DistributedOptimizer`, as "ours-mpi:bucket_bytes=65536".

    Raises:
        ConfigError: an unknown name, or options for somebody else's column.

    Example:
        >>> parse("ours-mpi:bucket_bytes=65536,overlap=false").options
        {'bucket_bytes': 65536, 'overlap': False}
    """
    name, colon, rest = text.partition(":")
    if name not in BY_NAME:
        raise ConfigError(f"--column {text}", ", ".join(BY_NAME), 'for example: --column ours-mpi --column "ours-mpi:overlap=false"')
    column = BY_NAME[name]
    if not colon:
        return column
    pairs = [word.partition("=") for word in rest.split(",")]
    if column.way != "ours" or not all(key.isidentifier() and equals for key, equals, _ in pairs):
        raise ConfigError(f"--column {text}", "options as name=value, of an ours-... column", "ours-mpi:bucket_bytes=65536")
    options = {key: yaml.safe_load(value) for key, _, value in pairs}
    return Column(text, column.way, column.line, column.about, column.engine, options, column.shares, column.syncs)


def launches(columns: Iterable[Column], together: bool = True) -> list[Launch]:
    """The launches of one round.

    Args:
        columns: in the order of the table.
        together: let those share a launch that can; False for memory, which belongs to a process.

    Example:
        >>> [launch.name for launch in launches([BY_NAME[n] for n in ("compute", "hvd-best", "ours-mpi")])]
        ['compute+ours-mpi', 'hvd-best']
    """
    groups: dict[Any, list[Column]] = {}
    for column in columns:
        groups.setdefault(column.line if together and column.shares else column, []).append(column)
    return [Launch(tuple(group)) for group in groups.values()]


def rotated(items: list, by: int) -> list:
    """The same items, beginning `by` places later: no column is always the first, or always after the same one.

    Example:
        >>> rotated([1, 2, 3], 4)
        [2, 3, 1]
    """
    by %= max(1, len(items))
    return items[by:] + items[:by]
