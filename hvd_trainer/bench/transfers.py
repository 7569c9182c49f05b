"""Which ways to sum a tensor over the ranks are measured, and with how many bytes (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hvd_trainer.bench.columns import Column
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.errors import ConfigError

KIB, MIB = 2**10, 2**20
SMALLEST_BYTES, LARGEST_BYTES, LIMIT_BYTES = KIB, 256 * MIB, 4096 * MIB
BYTES_IN_ALL = 64 * MIB  # so often is a size sent that it amounts to this, between the two limits
FEWEST, MOST = 12, 300
RAW, COPY = "raw-mpi", "copy"
WORKER = ("-m", "hvd_trainer.bench.transfers_worker")
COLUMNS = (
    Column("mpi", "ours", "mpirun", "comm.allreduce_ of engine mpi", "mpi", shares=True),
    Column(RAW, "raw", "mpirun", "mpi4py's Allreduce in place", shares=True),
    Column(COPY, "copy", "mpirun", "each rank copies the tensor, at the same time: the machine's memory bandwidth", shares=True, syncs=False),
    Column("horovod-mpi", "ours", "horovodrun-mpi", "comm.allreduce_ of engine horovod over MPI", "horovod"),
    Column("horovod-gloo", "ours", "horovodrun-gloo", "comm.allreduce_ of engine horovod over Gloo", "horovod"),
    Column("horovod-best", "ours", "mpirun-best", "the same over MPI with the best settings", "horovod"),
    Column("torch", "ours", "torchrun", "comm.allreduce_ of engine torch over Gloo", "torch"),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}


def sizes(largest_bytes: int = LARGEST_BYTES) -> list[int]:
    """1 KB, 4 KB, ... up to `largest_bytes`, in bytes.

    Raises:
        ConfigError: less than 1 KB or more than 4 GB.

    Example:
        >>> sizes(20_000)
        [1024, 4096, 16384]
    """
    if not SMALLEST_BYTES <= largest_bytes <= LIMIT_BYTES:
        raise ConfigError(f"--max-bytes {largest_bytes}", f"{SMALLEST_BYTES} to {LIMIT_BYTES} (4 GB)", "leave it out for 256 MB")
    found = [SMALLEST_BYTES]
    while found[-1] * 4 <= largest_bytes:
        found.append(found[-1] * 4)
    return found


def times(num_bytes: int) -> int:
    """How often a size is sent in one launch.

    Example:
        >>> times(1024), times(2**20), times(2**28)
        (300, 64, 12)
    """
    return max(FEWEST, min(MOST, BYTES_IN_ALL // num_bytes))


def workload(num_bytes: int) -> Workload:
    """A size as a workload, so that rounds and records are those of steps."""
    return Workload(size_text(num_bytes), "", steps=times(num_bytes), warmup=max(3, times(num_bytes) // 10))


def size_text(num_bytes: int) -> str:
    """ "4 KB", "256 MB": powers of 1024, as MPI's own benchmarks write them.

    Example:
        >>> size_text(1024), size_text(2**28)
        ('1 KB', '256 MB')
    """
    return f"{num_bytes // KIB} KB" if num_bytes < MIB else f"{num_bytes // MIB} MB"


def size_bytes(text: str) -> int:
    """Back from `size_text`.

    Example:
        >>> size_bytes("256 MB") == 2**28
        True
    """
    number, unit = text.split()
    return int(number) * (KIB if unit == "KB" else MIB)


def choose(names: Sequence[str]) -> list[Column]:
    """The columns that were asked for, or all.

    Raises:
        ConfigError: an unknown name.
    """
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise ConfigError(f"--column {unknown[0]}", ", ".join(BY_NAME))
    return [BY_NAME[name] for name in names] or list(COLUMNS)


def wrong_sums(sums: Mapping[str, Mapping[str, Sequence]], columns: Sequence[Column], num_ranks: int) -> list[str]:
    """A sentence for each column and size whose sum of rank + 1 over all ranks did not come out.

    Example:
        >>> wrong_sums({"1 KB": {"mpi": [[3.0, 3.0], [3.0, 2.0]]}}, COLUMNS, 2)
        ['1 KB: mpi: the sums are [[3.0, 3.0], [3.0, 2.0]], not all 3']
    """
    right = num_ranks * (num_ranks + 1) // 2
    syncs = {column.name for column in columns if column.syncs}
    return [
        f"{size}: {name}: the sums are {ranks}, not all {right}"
        for size, found in sums.items()
        for name, ranks in found.items()
        if name in syncs and any(value != right for rank in ranks for value in rank)
    ]


def gb_per_s(num_bytes: int, ms: float) -> float:
    """Bytes of the tensor per second, in 10^9 (not multiplied by what travels: a user's tensor is what is asked about).

    Example:
        >>> gb_per_s(4_000_000, 2.0)
        2.0
    """
    return num_bytes / ms / 1e6
