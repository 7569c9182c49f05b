"""Make a fresh wheel movable and give it its record."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hvd_trainer.launcher.horovod_build.record import RECORD_NAME
from hvd_trainer.launcher.horovod_build.settings import Settings


def patchelf(settings: Settings) -> str:
    """Path of patchelf, empty without it: then the wheel serves only the environment it was built in."""
    return shutil.which("patchelf", path=settings.path) or ""


def finish(wheel: Path, record: dict[str, Any], settings: Settings, work: Path) -> Path:
    """Open the wheel, rewrite its library paths, add the record, pack it again.

    Args:
        wheel: what pip built.
        record: what to write into it.
        settings: interpreter and search path.
        work: existing folder to work in.

    Returns:
        The new wheel.
    """
    opened, packed = work / "opened", work / "packed"
    packed.mkdir()
    _wheel(settings, "unpack", str(wheel), "--dest", str(opened))
    root = next(opened.iterdir())
    tool = patchelf(settings)
    for library in root.rglob("*.so") if tool else ():
        _make_relative(tool, library, library.relative_to(root))
    (root / "horovod" / RECORD_NAME).write_text(json.dumps(record, indent=1) + "\n")
    _wheel(settings, "pack", str(root), "--dest-dir", str(packed))
    return next(packed.glob("*.whl"))


def relative_runpath(runpath: str, library: Path, site: Path, prefix: Path) -> str:
    """Say where libraries are as seen from the library itself.

    The linker noted the absolute folders of the MPI and of torch, which belong to the environment of the build; in
    another environment the wheel would load that foreign MPI, or none.

    Args:
        runpath: colon-separated folders as the linker wrote them.
        library: path of the library inside the wheel.
        site: folder that the wheel is installed into.
        prefix: root of the environment; folders outside it stay as they are.

    Returns:
        The new list; folders that no longer exist (the build's own) are left out.

    Example:
        >>> relative_runpath("/v/lib", Path("horovod/torch/x.so"), Path("/v/lib/python3.11/site-packages"), Path("/v"))
        '$ORIGIN/../../../..'
    """
    here = (site / library).parent
    out: list[str] = []
    for folder in filter(None, runpath.split(":")):
        if Path(folder).is_relative_to(prefix):
            folder = "$ORIGIN/" + os.path.relpath(folder, here)
        elif not folder.startswith("$ORIGIN") and not Path(folder).is_dir():
            continue
        if folder not in out:
            out.append(folder)
    return ":".join(out)


def _make_relative(tool: str, library: Path, inside: Path) -> None:
    asked = subprocess.run([tool, "--print-rpath", str(library)], capture_output=True, text=True, check=True)
    old = asked.stdout.strip()
    site = Path(sysconfig.get_path("platlib"))
    new = relative_runpath(old, inside, site, Path(sys.prefix))
    if new != old:
        subprocess.run([tool, "--set-rpath", new, str(library)], check=True)


def _wheel(settings: Settings, *arguments: str) -> None:
    subprocess.run([settings.python, "-m", "wheel", *arguments], check=True, stdout=subprocess.DEVNULL)
