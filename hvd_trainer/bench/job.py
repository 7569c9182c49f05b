"""What one launch has to do and what its ranks answer: two kinds of JSON files (pure but for reading and writing)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hvd_trainer.bench.columns import Column
from hvd_trainer.bench.workloads import Workload

BLOCKS = 4  # turns that each column of a launch gets
WORKER = ("-m", "hvd_trainer.bench.worker")


@dataclass(frozen=True)
class Job:
    """One launch, as its ranks read it.

    Args:
        columns: measured in one process, in turns.
        workloads: one after the other.
        threads: CPU threads a rank.
        out: folder for the ranks' answers.
        memory: sample the memory while the steps run; their times then mean nothing.
        blocks: turns for each column.
        starter: process number of the one that starts the launcher.
    """

    columns: tuple[Column, ...]
    workloads: tuple[Workload, ...]
    threads: int
    out: str
    memory: bool = False
    blocks: int = BLOCKS
    starter: int = 0

    def write(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Job:
        """Back from JSON.

        Example:
            >>> import tempfile
            >>> job = Job((Column("a", "compute", "mpirun", ""),), (), 1, "out")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     job.write(Path(folder, "job.json"))
            ...     Job.read(Path(folder, "job.json")) == job
            True
        """
        read = json.loads(path.read_text())
        columns = tuple(Column(**column) for column in read.pop("columns"))
        workloads = tuple(Workload(**workload) for workload in read.pop("workloads"))
        return Job(columns, workloads, **read)


def answer_path(out: Path, rank: int) -> Path:
    """Where a rank puts its answer."""
    return out / f"rank{rank}.json"


def write_answer(out: Path, rank: int, answer: dict[str, Any]) -> None:
    """A rank's answer: {workload: {column: {"ms": [...], "losses": [...], ...}}}."""
    answer_path(out, rank).write_text(json.dumps(answer))


def read_answers(out: Path, num_ranks: int) -> list[dict[str, Any]]:
    """All ranks' answers, in rank order.

    Raises:
        FileNotFoundError: a rank gave none.
    """
    return [json.loads(answer_path(out, rank).read_text()) for rank in range(num_ranks)]
