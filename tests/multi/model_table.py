"""The table "same answer": kinds of models by engines and ranks.

    python -m tests.multi.model_table      starts every column (tests/multi/golden.py) and prints docs/same-answer-table.md
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tests.multi.models import KINDS, difference, reference, train

# Column -> launcher of tests.harness, ranks, variables.
COLUMNS = {
    f"{name}, {ranks}": (launcher, ranks, env)
    for name, launcher, env in (
        ("mpi", "mpirun", {}),
        ("horovod gloo", "horovodrun-gloo", {}),
        ("horovod mpi", "horovodrun-mpi", {"HVD_TRAINER_ENGINE": "horovod"}),
        ("torch gloo", "torchrun", {}),
    )
    for ranks in (2, 3)
}


def column(name: str, folder: Path) -> dict[str, float]:
    """Largest relative difference of each kind to one process, for one column of the table."""
    from tests.harness import run_ranks

    folder.mkdir()
    launcher, ranks, env = COLUMNS[name]
    run_ranks(launcher, ranks, ["-m", "tests.multi.golden", "straight", folder], timeout_s=240, env=env).ok()
    return torch.load(folder / "models.pt")


def table() -> str:
    """Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        columns = {name: column(name, Path(folder, str(number))) for number, name in enumerate(COLUMNS)}
    lines = ["| model | tolerance | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 2)]
    for kind in KINDS:
        cells = [f"{values[kind.name]:.1e}" for values in columns.values()]
        lines.append(f"| {kind.name} | {kind.tolerance:.0e} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measure(kind, comm) -> float:
    """Train on all ranks; the largest relative difference to one process (0 on the ranks that do not compare)."""
    params = train(kind, comm)
    if not kind.ghost:
        mine = {name: value.sum().item() for name, value in params.items()}
        assert comm.gather_objects(mine) == [mine] * comm.size, f"{kind.name}: the ranks differ"
    return difference(params, reference(kind, comm.size)) if comm.rank == 0 else 0.0


if __name__ == "__main__":
    print(table())
