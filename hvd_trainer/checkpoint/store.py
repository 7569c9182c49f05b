"""One folder of checkpoints: written beside and renamed, so that whatever has its final name is complete."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Optional

import torch

from hvd_trainer.errors import CheckpointError

FORMAT = 1
_NAME = re.compile(r"step-(\d{10})")


class Store:
    """Checkpoints `step-0000000046/{state.pt,manifest.json}` in one folder. Used on one rank only.

    Args:
        folder: made by `prepare`, or when the first checkpoint is written.
        keep: how many of the newest to keep, >= 1.
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 3) -> None:
        self.folder, self.keep = Path(folder).expanduser(), keep

    def prepare(self) -> None:
        """Make the folder and try it: who may not write there must hear of it before hours of training, not after.

        Raises:
            CheckpointError: the folder cannot be made or written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(1))
                _to_disk(file)
        except OSError as error:
            raise self._cannot_write("checkpoints", error) from error

    def save(self, step: int, state: dict[str, Any], manifest: dict[str, Any]) -> Path:
        """Write one checkpoint; what was there before stays loadable until this one is complete.

        Raises:
            CheckpointError: the folder cannot be written (no permission, no space); older checkpoints are untouched.
        """
        final = self.folder / f"step-{step:010d}"
        temporary, replaced = (self.folder / f".{final.name}.{os.getpid()}{part}.tmp" for part in ("", ".replaced"))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            temporary.mkdir()
            with open(temporary / "state.pt", "wb") as file:
                torch.save(state, file)
                _to_disk(file)
            # Reads the structure, not the tensors: what could not be loaded again must be known now, not after a crash.
            torch.load(temporary / "state.pt", map_location="cpu", weights_only=True, mmap=True)
            size = (temporary / "state.pt").stat().st_size
            with open(temporary / "manifest.json", "w") as file:
                json.dump({"format": FORMAT, "step": step, "state_bytes": size, **manifest}, file, indent=1)
                _to_disk(file)
            if final.exists():
                os.rename(final, replaced)
            os.rename(temporary, final)
            _sync_folder(self.folder)
            shutil.rmtree(replaced, ignore_errors=True)
        except (pickle.PickleError, AttributeError, TypeError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            found = re.search(r"GLOBAL (\S+)", str(error))  # from torch's advice to switch the safe loader off
            raise CheckpointError(
                f"the checkpoint of step {step} holds something that cannot be loaded again: {found[1] if found else error}",
                "tensors, numbers, strings, None, and dicts, lists and tuples of them",
                "correct what a callback's state_dict() or a row of the history holds",
            ) from error
        except (OSError, RuntimeError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise self._cannot_write(f"the checkpoint of step {step}", error) from error
        for old in self.complete()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def complete(self) -> list[Path]:
        """All complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [path for path in self.folder.iterdir() if _NAME.fullmatch(path.name) and (path / "manifest.json").is_file()]
        return sorted(found, key=lambda path: path.name)

    def latest(self) -> Optional[Path]:
        """The newest complete checkpoint, or None."""
        found = self.complete()
        return found[-1] if found else None

    def set_aside(self, after_step: int) -> Optional[Path]:
        """Move checkpoints of later steps, left by another run in this folder, to `folder/previous-1`, `-2`, ...

        Otherwise they would be taken for the newest of this run, and `keep` would delete this run's own.

        Returns:
            Where they are now; None where there were none.
        """
        stale = [path for path in self.complete() if int(_NAME.fullmatch(path.name)[1]) > after_step]
        if not stale:
            return None
        number = 1 + max((int(path.name.rpartition("-")[2]) for path in self.folder.glob("previous-*")), default=0)
        previous = self.folder / f"previous-{number}"
        previous.mkdir()
        for path in stale:
            os.rename(path, previous / path.name)
        return previous

    def _cannot_write(self, what: str, error: Exception) -> CheckpointError:
        no_room = isinstance(error, RuntimeError) or error.errno in (errno.ENOSPC, errno.EDQUOT)  # torch's own are RuntimeErrors
        older = False
        with contextlib.suppress(OSError):  # where even looking is not allowed
            older = bool(self.complete())
        return CheckpointError(
            f"{what} cannot be written to {self.folder}: {error}",
            "a folder with write permission and room",
            (f"make room: df -h {self.folder}, quota" if no_room else "another folder, or permission to write there: ht.Checkpoint(folder)")
            + ("; older checkpoints there are complete" if older else ""),
        )

    def _sweep(self) -> None:
        """Remove what a killed run left half written."""
        for path in self.folder.glob(".step-*.tmp"):
            shutil.rmtree(path, ignore_errors=True)


def load(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and manifest of one checkpoint, tensors on the CPU.

    Args:
        path: a folder `step-...`, or a folder of them (then the newest).

    Raises:
        CheckpointError: there is none, it is of another format, or a file is damaged.
    """
    folder = Path(path).expanduser()
    if not (folder / "manifest.json").is_file():
        latest = Store(folder).latest()
        if latest is None:
            raise CheckpointError(
                f"no checkpoint in {folder}", "a folder written by ht.Checkpoint", "correct resume=, or leave it out to start anew"
            )
        folder = latest
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"{folder} has format {manifest['format']}", f"format {FORMAT}", "load it with the release that wrote it"
            )
        state_file = folder / "state.pt"
        if state_file.stat().st_size != manifest["state_bytes"]:
            raise ValueError(f"{state_file.name} has {state_file.stat().st_size} bytes, {manifest['state_bytes']} were written")
        with zipfile.ZipFile(state_file) as archive:  # torch itself does not look at the checksums that it writes
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"the checksum of {damaged} in {state_file.name} is wrong")
        return torch.load(state_file, map_location="cpu", weights_only=True), manifest
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{folder} is damaged: {type(error).__name__}: {error}", "", f"remove {folder}; the run then resumes from the one before"
        ) from error


def _to_disk(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
