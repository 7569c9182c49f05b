"""One start a column (launcher and ranks) for all tests of this folder: it takes seconds, what they train does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.harness import Result, run_ranks
from tests.rank_start import NO_COMPILER

ALL = [("mpirun", ranks) for ranks in (2, 3, 4)] + [
    (launcher, ranks) for launcher in ("horovodrun-gloo", "horovodrun-mpi", "torchrun") for ranks in (2, 3)
]
QUICK = [("mpirun", 3), ("horovodrun-gloo", 2), ("horovodrun-mpi", 2)]
# A third time what two others show: each engine at 2 or 3 ranks, and Horovod at both, is above or in ALL.
PROOF = [("horovodrun-mpi", 3), ("torchrun", 2)]
# Under horovodrun --mpi the choice falls on mpi4py, where it is installed; here Horovod itself is to answer.
ASKED = {"horovodrun-mpi": {"HVD_TRAINER_ENGINE": "horovod"}}


def each_column(columns=ALL):
    """A test for each column; those that are not quick are left to `make test-rest`, or to `make test-proof`."""
    marked = [
        pytest.param(*column, marks=[] if column in QUICK else pytest.mark.proof if column in PROOF else pytest.mark.slow)
        for column in columns
    ]
    return pytest.mark.parametrize(("launcher", "num_ranks"), marked)


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """On busy cores a small layer's second thread is waited for longer than it computes: 5 s of CPU for 0.2 were seen."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], tuple[Result, Path]]:
    """`straight(launcher, num_ranks)`: what one start printed and its folder; started when the first test asks."""
    known: dict[tuple[str, int], tuple[Result, Path] | BaseException] = {}

    def start(launcher: str, num_ranks: int) -> tuple[Result, Path]:
        column = launcher, num_ranks
        if column not in known:
            folder = tmp_path_factory.mktemp(f"{launcher}-{num_ranks}")
            try:
                known[column] = program(*column, "straight", folder), folder
            except (pytest.fail.Exception, pytest.skip.Exception) as outcome:
                known[column] = outcome
        found = known[column]
        if isinstance(found, BaseException):
            raise found
        return found

    return start


def program(launcher: str, num_ranks: int, what: str, *folders: Path) -> Result:
    """Start tests/multi/golden.py, which compiles one kind of model when it goes straight."""
    env = {**ASKED.get(launcher, {}), **(NO_COMPILER if what == "resumed" else {})}
    return run_ranks(launcher, num_ranks, ["-m", "tests.multi.golden", what, *folders], 240, env)


def read(start: tuple[Result, Path], part: str) -> dict[str, Any]:
    """What a start wrote as `part`: a result for each name, or the text of the error."""
    result, folder = start
    file = folder / f"{part}.pt"
    assert file.exists(), f"no {part} was written\n{result}"
    return torch.load(file)


def errors(found: dict[str, Any]) -> str:
    """The tracebacks among what was found."""
    return "\n".join(f"--- {name}\n{value}" for name, value in found.items() if isinstance(value, str))
