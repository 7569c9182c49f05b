"""The command that trains with what a search recommends (pure but for `fresh`)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hvd_trainer.tune.ledger import Record


def command(script: str, arguments: Sequence[str], record: Record, config: Path, folder: Path) -> str:
    """As it can be typed where the search was started.

    A checkpoint of another batch cannot be gone on with, and the script's folder is likely to hold some: so where a field of the
    config has the folder's name, it gets another one.

    Args:
        script, arguments: as the search ran it.
        record: the trial that is recommended.
        config: `recommended.yaml`.
        folder: for checkpoints; that of several `ht.Checkpoint` is the parent.
    """
    ranks = record.settings.ranks
    start = ["hvd-trainer", "launch", "-np", str(ranks)] if ranks > 1 else ["python"]
    fields = checkpoint_fields(record)
    places = [folder] if len(fields) == 1 else [folder / name for name in fields]
    sets = [word for name, place in zip(fields, places) for word in ("--set", f"{name}={place}")]
    return shlex.join([*start, script, *arguments, "--config", str(config), *sets])


def checkpoint_fields(record: Record) -> list[str]:
    """Fields of the config that hold the folder of an `ht.Checkpoint` of the script.

    Args:
        record: a trial.
    """
    values: dict[str, Any] = record.result.config.get("config", {})
    folders = {Path(folder) for folder in record.result.start.get("checkpoints", ())}
    return [name for name, value in values.items() if isinstance(value, str) and value and Path(value).expanduser() in folders]


def about_fixed_folders(record: Record) -> list[str]:
    """A sentence for each folder of an `ht.Checkpoint` that no field of the config holds, so that no `--set` can change it."""
    values = record.result.config.get("config", {})
    held = {Path(values[name]).expanduser() for name in checkpoint_fields(record)}
    fixed = [folder for folder in record.result.start.get("checkpoints", ()) if Path(folder) not in held]
    return [f"Its checkpoints go to {folder}, as the script says: move away what another batch has left there." for folder in fixed]


def fresh(config: Path) -> Path:
    """A folder for checkpoints that is not there yet: run, run-2, run-3, ... beside recommended.yaml.

    Args:
        config: the yaml file; of recommended_4.yaml it is run_4, for another recommendation cannot go on in the same one.
    """
    name, number = config.stem.replace("recommended", "run"), 1
    while (path := config.with_name(f"{name}-{number}" if number > 1 else name)).exists():
        number += 1
    return path
