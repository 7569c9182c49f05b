"""Which wheel is the same wheel: the key, and the folder that keeps wheels by it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvd_trainer.launcher.horovod_build import HOROVOD_VERSION
from hvd_trainer.launcher.horovod_build.build import last_words
from hvd_trainer.launcher.horovod_build.facts import Facts
from hvd_trainer.launcher.horovod_build.repairs import Repair
from hvd_trainer.launcher.horovod_build.settings import Settings


def inputs(facts: Facts, settings: Settings, repairs: tuple[Repair, ...], movable: bool) -> dict[str, Any]:
    """Everything that the content of a wheel depends on, readable.

    Args:
        movable: the wheel's library paths will be made relative. Without that they hold this very environment,
            and so must the key.
    """
    return {
        "horovod": HOROVOD_VERSION,
        "repairs": {repair.name: _digest([repair.file, repair.expected, repair.replacement]) for repair in repairs},
        "torch": facts.torch,
        "python": facts.python,
        "machine": facts.machine,
        "mpi": facts.mpi if settings.with_mpi else "none",
        "mpi_place": _mpi_place(facts.mpicxx),
        "gloo": settings.with_gloo,
        "cuda": facts.cuda.version if facts.cuda.gpu else "none",
        "compiler": facts.cxx_version,
        "flags": last_words(facts.standard),
        "environment": "any" if movable else sys.prefix,
    }


def key(of: dict[str, Any]) -> str:
    """A short name for a set of inputs.

    Example:
        >>> key({"torch": "2.13.0"}) == key({"torch": "2.13.0"})
        True
    """
    return _digest(of)[:16]


def find(cache: Path, wheel_key: str) -> Path | None:
    """The kept wheel of that key."""
    return next(iter((cache / "wheels" / wheel_key).glob("*.whl")), None)


def keep(cache: Path, wheel_key: str, wheel: Path) -> Path:
    """Move a wheel into the cache; another process sees all of it or none."""
    folder = cache / "wheels" / wheel_key
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{wheel.name}.{os.getpid()}"
    shutil.copyfile(wheel, part)
    part.replace(folder / wheel.name)
    return folder / wheel.name


def drop(cache: Path, wheel_key: str) -> None:
    """Forget the wheel of that key."""
    shutil.rmtree(cache / "wheels" / wheel_key, ignore_errors=True)


@contextlib.contextmanager
def lock(cache: Path) -> Iterator[None]:
    """One build at a time in one cache: two would fight for memory, and the second finds the first one's wheel."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("  another Horovod build uses this cache; waiting for it", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def scratch(cache: Path) -> Iterator[Path]:
    """A folder to build in, on the cache's disk, whose room was checked; to be called under the lock.

    What a killed build left behind is removed first: nobody else can be using it.
    """
    for left in cache.glob("build-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _mpi_place(mpicxx: str) -> str:
    # An MPI inside the environment moves with it; any other is found by its absolute path.
    if not mpicxx:
        return "none"
    return "environment" if Path(mpicxx).is_relative_to(sys.prefix) else str(Path(mpicxx).parent)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
