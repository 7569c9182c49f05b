"""The table "same answer": kinds of models by engines and ranks.

    python -m tests.multi.model_table            runs every column and prints the table (docs/same-answer-table.md)
    python -m tests.multi.model_table FILE       on several ranks: rank 0 writes {kind: difference} to FILE
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import hvd_trainer as ht
from tests.multi.models import KINDS, difference, reference, train

# Column -> launcher of tests.harness, ranks, variables.
COLUMNS = {
    f"{name}, {ranks}": (launcher, ranks, env)
    for name, launcher, env in (
        ("mpi", "mpirun", {}),
        ("horovod gloo", "horovodrun-gloo", {}),
        ("horovod mpi", "horovodrun-mpi", {"HVD_TRAINER_ENGINE": "horovod"}),
        ("torch gloo", "mpirun", {"HVD_TRAINER_ENGINE": "torch"}),
    )
    for ranks in (2, 3)
}


def column(name: str, folder: Path) -> dict[str, float]:
    """Largest relative difference of each kind to one process, for one column of the table."""
    from tests.harness import run_ranks

    launcher, ranks, env = COLUMNS[name]
    file = folder / "differences.json"
    run_ranks(launcher, ranks, ["-m", "tests.multi.model_table", file], timeout_s=240, env=env).ok()
    return json.loads(file.read_text())


def table() -> str:
    """Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        columns = {name: column(name, Path(folder)) for name in COLUMNS}
    lines = ["| model | tolerance | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 2)]
    for kind in KINDS:
        cells = [f"{values[kind.name]:.1e}" for values in columns.values()]
        lines.append(f"| {kind.name} | {kind.tolerance:.0e} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(comm) -> None:
    found = {}
    for kind in KINDS:
        params = train(kind, comm)
        if not kind.ghost:
            mine = {name: value.sum().item() for name, value in params.items()}
            assert comm.gather_objects(mine) == [mine] * comm.size, f"{kind.name}: the ranks differ"
        found[kind.name] = difference(params, reference(kind, comm.size)) if comm.rank == 0 else 0.0
    if comm.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        ht.run(main)
    else:
        print(table())
