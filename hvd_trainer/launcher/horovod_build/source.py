"""The release's source archive: kept in the cache, fetched with pip, checked, unpacked."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from hvd_trainer.errors import ConfigError, MissingPartError
from hvd_trainer.launcher.horovod_build import HOROVOD_SDIST_SHA256, HOROVOD_VERSION
from hvd_trainer.launcher.horovod_build.settings import Settings

_ARCHIVE = f"horovod-{HOROVOD_VERSION}.tar.gz"


def unpacked(settings: Settings, into: Path) -> Path:
    """Give the root of a fresh source tree.

    Args:
        settings: names the cache and the interpreter whose pip fetches; pip's own settings (PIP_INDEX_URL,
            PIP_FIND_LINKS, PIP_NO_INDEX, its files) decide where from.
        into: existing empty folder.

    Raises:
        MissingPartError: the archive cannot be had.
        ConfigError: what was served is not the released archive.
    """
    archive = settings.cache / "source" / _ARCHIVE
    if not archive.is_file():
        _fetch(settings, archive)
    if _sha256(archive) != HOROVOD_SDIST_SHA256:
        archive.unlink()
        raise ConfigError(
            f"{_ARCHIVE} is not the released archive (its SHA-256 differs).",
            allowed=HOROVOD_SDIST_SHA256,
            fix="look at the index that pip uses (pip config list), then run this command again",
        )
    with tarfile.open(archive) as tar:
        # The checksum has vouched for the content; the filter only exists since 3.10.12 and 3.11.4.
        extra = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(into, **extra)
    return into / f"horovod-{HOROVOD_VERSION}"


def _fetch(settings: Settings, archive: Path) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        # pip looks into the archive for its metadata; HOROVOD_* of the caller must not bring a build along.
        command = [
            settings.python,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            "horovod",
            "--no-build-isolation",
            "--dest",
            folder,
            f"horovod=={HOROVOD_VERSION}",
        ]
        done = subprocess.run(
            command, env=settings.base_env, capture_output=True, text=True, errors="replace", check=False
        )
        fetched = Path(folder) / _ARCHIVE
        if done.returncode != 0 or not fetched.is_file():
            lines = [line for line in done.stderr.splitlines() if line.strip()][-4:]
            raise MissingPartError(
                "The source of Horovod could not be fetched:\n    " + "\n    ".join(lines),
                fix=f"make the package index reachable, or put {_ARCHIVE} into a folder and set PIP_FIND_LINKS to it "
                "(with make: WHEELS=folder)",
            )
        shutil.move(fetched, archive)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
