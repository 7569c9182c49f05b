"""The few lines of Horovod 0.28.1 that are known to be wrong, and how they are put right.

A repair replaces one exact text. When that text is not there, or not exactly once, the source is not the one
that the repair was proven on, and the build stops: a guess in somebody else's engine is worse than no engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvd_trainer.errors import ConfigError


@dataclass(frozen=True)
class Repair:
    """One text put right in one file.

    Args:
        name: short name, shown in the log and by `hvd-trainer doctor`.
        file: path inside the unpacked source.
        expected: text that must be there exactly once.
        replacement: what it becomes.
        why: what goes wrong without it, in one sentence.
    """

    name: str
    file: str
    expected: str
    replacement: str
    why: str


REPAIRS = (
    Repair(
        name="gloo-stall-check",
        file="horovod/common/gloo/gloo_controller.cc",
        expected="global_ranks_.reserve(size_);",
        replacement="global_ranks_.resize(size_);",
        why="reserve() leaves the list of ranks empty, so under Gloo the stall check looks at nobody and ranks that "
        "submit different tensors hang for ever without a warning.",
    ),
    Repair(
        name="rendezvous-restart",
        file="horovod/runner/http/http_server.py",
        expected="self.server.finished_list.clear()",
        replacement="self.server.finished_list.pop(scope, None)",
        why="one scope that finishes wipes the finish lists of all scopes, so a later init under horovodrun with Gloo "
        "connects to a dead address and aborts.",
    ),
    Repair(
        name="binding-options",
        file="horovod/runner/mpi_run.py",
        expected="_NO_BINDING_ARGS = ['-bind-to none', '-map-by slot']",
        replacement="_NO_BINDING_ARGS = ['--bind-to none', '--map-by slot']",
        why="Open MPI 5 has no long options with a single dash, so plain horovodrun fails; older Open MPI and MPICH "
        "take both forms.",
    ),
    Repair(
        name="mpich-5",
        file="horovod/runner/mpi_run.py",
        expected="elif 'MPICH' in output:",
        replacement="elif 'MPICH' in output or 'HYDRA build details' in output:",
        why="the launcher of MPICH 5 names itself HYDRA only, and horovodrun refuses it as an unknown MPI.",
    ),
    Repair(
        name="no-distutils",
        file="horovod/runner/js_run.py",
        expected="from distutils.spawn import find_executable",
        replacement="from shutil import which as find_executable",
        why="Python 3.12 has no distutils, and horovodrun imports it at start.",
    ),
)

# Not a repair of a fault but of a decision: applied, with or without --no-repairs, only when torch has CUDA and no
# whole toolkit is here. FindPytorch takes CUDA for given as soon as any nvcc or toolkit folder is seen, and cmake then
# stops at the first missing part. No variable switches that off, and torch's own files are not ours to change.
CPU_ONLY = Repair(
    name="cpu-only",
    file="cmake/Modules/FindPytorch.cmake",
    expected='string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)',
    replacement='set(Pytorch_CUDA "FALSE")',
    why="torch has CUDA but no whole CUDA toolkit is here, so Horovod is built for CPUs.",
)

# As the compiler wrapper for C++: a matter of the language standard, so it goes with every GPU build. nvcc in C++11 cannot
# read the headers of a host compiler that the wrapper has set to C++17.
CUDA_STANDARD = Repair(
    name="cuda-standard",
    file="horovod/common/ops/cuda/CMakeLists.txt",
    expected="set(CMAKE_CUDA_STANDARD 11)",
    replacement="set(CMAKE_CUDA_STANDARD 17)",
    why="the CUDA kernels are compiled as C++11, which does not fit the C++17 that torch needs.",
)


def apply(source: Path, repairs: tuple[Repair, ...]) -> None:
    """Put the texts right in an unpacked source tree; nothing is written unless all of them fit.

    Args:
        source: root of the unpacked source.
        repairs: what to apply.

    Raises:
        ConfigError: an expected text is missing or not unique.
    """
    texts: dict[Path, str] = {}
    for repair in repairs:
        file = source / repair.file
        text = texts.get(file)
        if text is None:
            text = file.read_text() if file.is_file() else ""
        count = text.count(repair.expected)
        if count != 1:
            found = "is not there" if count == 0 else f"is there {count} times"
            raise ConfigError(
                f"Repair {repair.name} refused: in {repair.file} the text `{repair.expected}` {found}, so this is not "
                "the source that the repair was proven on.",
                fix="hvd-trainer install-horovod --no-repairs builds the source as it is",
            )
        texts[file] = text.replace(repair.expected, repair.replacement)
    for file, text in texts.items():
        file.write_text(text)
