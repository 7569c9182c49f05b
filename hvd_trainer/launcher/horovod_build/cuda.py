"""Whether Horovod can be built for GPUs here: decided before cmake, so that the answer is a sentence."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cuda:
    """The decision and its reason.

    Args:
        gpu: build with CUDA and NCCL.
        home: root of the toolkit, empty when `gpu` is False.
        version: release of the toolkit.
        nccl: folder with NCCL's include/ and lib/; empty lets cmake look in the system's folders.
        reason: one sentence for the log.
    """

    gpu: bool
    home: str
    version: str
    nccl: str
    reason: str


def find_cuda(torch_cuda: str, named_home: str, path: str, nccl: str) -> Cuda:
    """Decide on GPU support.

    Args:
        torch_cuda: the CUDA release of torch, empty for a CPU build.
        named_home: toolkit named by the user; empty for the one whose nvcc is on `path`, then the usual place.
        path: search path for nvcc.
        nccl: folder of an NCCL that came with torch, or empty.

    Returns:
        A GPU build only if torch has CUDA and one toolkit of the same major release is whole: compiler,
        headers, runtime library, and NCCL's header. Half a toolkit is common (drivers and nvcc without
        headers), and cmake stops at it.
    """
    if not torch_cuda:
        return Cuda(False, "", "", "", "torch has no CUDA, so Horovod is built for CPUs.")
    reasons = []
    for home in _candidates(named_home, path):
        missing = _missing_parts(home, nccl)
        version = _toolkit_version(home)
        if missing:
            reasons.append(f"{home} lacks {', '.join(missing)}")
        elif version and version.split(".")[0] != torch_cuda.split(".")[0]:
            reasons.append(f"{home} is CUDA {version}, torch is for {torch_cuda}")
        else:
            return Cuda(True, str(home), version, nccl, f"CUDA {version or torch_cuda} at {home}: built with NCCL.")
    why = "; ".join(reasons) or "no CUDA toolkit was found"
    return Cuda(
        False,
        "",
        "",
        "",
        f"torch is for CUDA {torch_cuda}, but {why}: Horovod is built for CPUs. For GPUs install the whole toolkit "
        f"of CUDA {torch_cuda.split('.')[0]} and NCCL, set CUDA_HOME to it and run this command again.",
    )


def _candidates(named_home: str, path: str) -> list[Path]:
    if named_home:
        return [Path(named_home)]
    homes = []
    nvcc = shutil.which("nvcc", path=path)
    if nvcc:
        homes.append(Path(nvcc).resolve().parent.parent)
    homes.append(Path("/usr/local/cuda"))
    return [home for i, home in enumerate(homes) if home.is_dir() and home not in homes[:i]]


def _missing_parts(home: Path, nccl: str) -> list[str]:
    def there(*patterns: str) -> bool:
        return any(next(home.glob(pattern), None) for pattern in patterns)

    parts = {
        "nvcc": there("bin/nvcc"),
        "the headers (cuda_runtime.h)": there("include/cuda_runtime.h", "targets/*/include/cuda_runtime.h"),
        "the runtime library (libcudart)": there("lib64/libcudart*", "lib/libcudart*", "targets/*/lib/libcudart*"),
        "NCCL's header (nccl.h)": bool(nccl) or there("include/nccl.h") or Path("/usr/include/nccl.h").is_file(),
    }
    return [name for name, found in parts.items() if not found]


def _toolkit_version(home: Path) -> str:
    for name, pattern in (
        ("version.json", r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+\.\d+)'),
        ("version.txt", r"CUDA Version (\d+\.\d+)"),
    ):
        file = home / name
        found = re.search(pattern, file.read_text(errors="replace")) if file.is_file() else None
        if found:
            return found.group(1)
    header = next(iter([*home.glob("include/cuda.h"), *home.glob("targets/*/include/cuda.h")]), None)
    found = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", header.read_text(errors="replace")) if header else None
    return f"{int(found.group(1)) // 1000}.{int(found.group(1)) % 1000 // 10}" if found else ""
