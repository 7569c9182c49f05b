"""What this machine has to build with; read from metadata and version texts, torch is never imported.

Importing torch costs seconds, and the answer "already installed" must come in well under one.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hvd_trainer import mpi_flavour
from hvd_trainer.launcher.horovod_build.cuda import Cuda, find_cuda
from hvd_trainer.launcher.horovod_build.settings import Settings

_STANDARDS = {201703: 17, 202002: 20, 202302: 23}


@dataclass(frozen=True)
class Facts:
    """What was found; an empty string means "not there".

    Args:
        python: interpreter tag such as `cp311`.
        machine: processor and C library, such as `x86_64-glibc2.36`.
        torch: version of torch with its local part (`2.13.0+cpu`).
        torch_cuda: CUDA version that torch was built for.
        standard: C++ standard that the headers of torch ask for (17, 20, ...).
        cxx: path of the C++ compiler.
        cxx_version: first line of its version text.
        make: path of make.
        cmake: path of cmake.
        cmake_version: as a tuple, `()` without cmake.
        mpicxx: path of the MPI compiler wrapper.
        mpirun: path of the launcher beside it.
        mpi: flavour and version.
        cuda: the CUDA decision.
    """

    python: str
    machine: str
    torch: str
    torch_cuda: str
    standard: int
    cxx: str
    cxx_version: str
    make: str
    cmake: str
    cmake_version: tuple[int, ...]
    mpicxx: str
    mpirun: str
    mpi: str
    cuda: Cuda


def gather(settings: Settings) -> Facts:
    """Look at everything once."""
    torch_folder = _package_folder("torch")
    torch_cuda = _torch_cuda(torch_folder)
    cxx = _first_tool(settings, settings.cxx.split()[0] if settings.cxx else "", "c++", "g++", "clang++")
    cmake = _first_tool(settings, "cmake")
    mpicxx = _first_tool(settings, settings.mpicxx, "mpicxx", "mpic++") if settings.with_mpi else ""
    mpirun = _launcher_beside(settings, mpicxx)
    flavour = mpi_flavour.parse(_output(mpirun, "--version")) if mpirun else mpi_flavour.MpiFlavour("", "")
    libc = "".join(platform.libc_ver())
    return Facts(
        python="cp" + (sysconfig.get_config_var("py_version_nodot") or ""),
        machine=f"{platform.machine()}-{libc}",
        torch=_version("torch") if torch_folder else "",
        torch_cuda=torch_cuda,
        standard=_standard(torch_folder),
        cxx=cxx,
        cxx_version=(_output(cxx, "--version").splitlines() or [""])[0] if cxx else "",
        make=_first_tool(settings, "make"),
        cmake=cmake,
        cmake_version=_numbers(_output(cmake, "--version")) if cmake else (),
        mpicxx=mpicxx,
        mpirun=mpirun,
        mpi=str(flavour) if flavour.name else "",
        cuda=find_cuda(torch_cuda, settings.cuda_home, settings.path, _nccl_folder()),
    )


def has_module(name: str) -> bool:
    """Whether a top-level module can be imported, without importing it."""
    return importlib.util.find_spec(name) is not None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _package_folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def _nccl_folder() -> str:
    # The CUDA builds of torch bring NCCL, with its header, as the namespace package nvidia.nccl.
    nvidia = _package_folder("nvidia")
    folder = nvidia / "nccl" if nvidia else None
    return str(folder) if folder and (folder / "include" / "nccl.h").is_file() else ""


def _torch_cuda(folder: Path | None) -> str:
    version_file = folder / "version.py" if folder else None
    if version_file is None or not version_file.is_file():
        return ""
    found = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", version_file.read_text(), re.M)
    return found.group(1) if found else ""


def _standard(folder: Path | None) -> int:
    header = folder / "include/torch/csrc/api/include/torch/all.h" if folder else None
    if header is None or not header.is_file():
        return 17
    found = re.search(r"__cplusplus\s*<=?\s*(\d+)L", header.read_text(errors="replace"))
    asked = int(found.group(1)) if found else 201703
    return next((std for number, std in sorted(_STANDARDS.items()) if number >= asked), 23)


def _first_tool(settings: Settings, *names: str) -> str:
    for name in names:
        found = shutil.which(name, path=settings.path) if name else None
        if found:
            return found
    return ""


def _launcher_beside(settings: Settings, mpicxx: str) -> str:
    for name in ("mpirun", "mpiexec") if mpicxx else ():
        beside = Path(mpicxx).parent / name
        if beside.is_file():
            return str(beside)
    return _first_tool(settings, "mpirun", "mpiexec") if mpicxx else ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups(default="0")) if found else ()
