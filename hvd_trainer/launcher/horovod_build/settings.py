"""What the environment says; the only file of the Horovod build that reads it."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Everything that a build takes from outside.

    Args:
        cache: folder for wheels, archives and logs.
        path: search path for tools; the virtual environment's own `bin` comes first, so that the build
            finds the MPI and the cmake next to the interpreter even when nobody activated it.
        cxx: the user's choice of C++ compiler, empty for the first of c++, g++, clang++.
        mpicxx: the MPI compiler wrapper to build with, empty for the first one on `path`.
        cuda_home: the CUDA toolkit the user named, empty for the usual places.
        jobs: compilers at a time, at least 1.
        with_mpi: build the MPI engine.
        with_gloo: build the Gloo engine.
        with_repairs: apply the known repairs.
        python: the interpreter whose site-packages get Horovod.
        base_env: the environment that child processes inherit.
    """

    cache: Path
    path: str
    cxx: str = ""
    mpicxx: str = ""
    cuda_home: str = ""
    jobs: int = 1
    with_mpi: bool = True
    with_gloo: bool = True
    with_repairs: bool = True
    python: str = sys.executable
    base_env: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_environment(cls, cache: str = "", mpicxx: str = "", jobs: int = 0, **flags: bool) -> Settings:
        """Read the environment once; what is given on the command line wins."""
        env = dict(os.environ)
        bin_folder = str(Path(sys.executable).parent)
        return cls(
            cache=Path(cache or env.get("HVD_TRAINER_CACHE") or default_cache(env)).expanduser().absolute(),
            path=os.pathsep.join([bin_folder, env.get("PATH", os.defpath)]),
            cxx=env.get("CXX", ""),
            mpicxx=mpicxx or env.get("MPICXX", ""),
            cuda_home=env.get("HOROVOD_CUDA_HOME") or env.get("CUDA_HOME") or env.get("CUDA_PATH") or "",
            jobs=jobs or len(os.sched_getaffinity(0)),
            base_env=env,
            **flags,
        )


def default_cache(env: dict[str, str]) -> str:
    """The folder of the XDG convention: `$XDG_CACHE_HOME/hvd_trainer`, else `~/.cache/hvd_trainer`."""
    root = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "~")).expanduser() / ".cache")
    return str(Path(root) / "hvd_trainer")
