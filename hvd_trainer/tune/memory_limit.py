"""How many bytes this process may still take: the node's free memory, its control groups, its own limits."""

from __future__ import annotations

import math
import resource
from pathlib import Path

STATUS = Path("/proc/self/status")
UNLIMITED = 1 << 60  # control groups write "no limit" as some number near 2^63


def available_bytes(root: Path = Path("/")) -> float:
    """The smallest of what the node, every control group above this process, and its `ulimit -v` and `-d` leave.

    Pages of files that the kernel can drop at once do not count as taken. Infinite where the system says nothing.

    Args:
        root: where /proc and /sys are; for tests.
    """
    proc = root / "proc"
    found = [_field(proc / "meminfo", "MemAvailable") * 1024, *_groups(root)]
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            found.append(soft - _field(proc / "self" / "status", used, 0.0) * 1024)
    return max(0.0, min(found))


def private_bytes() -> int:
    """What RLIMIT_DATA counts of this process: its private memory, touched or not."""
    return int(_field(STATUS, "VmData", 0.0)) * 1024


def forget_peak() -> int:
    """Bytes of memory in use now; `peak_bytes` counts from here on, where the system lets it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass
    return int(_field(STATUS, "VmRSS", 0.0)) * 1024


def peak_bytes() -> int:
    """The most bytes of memory that were in use at once."""
    return int(_field(STATUS, "VmHWM", 0.0)) * 1024


def _groups(root: Path) -> list[float]:
    try:
        lines = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        folder = base / path.lstrip("/")
        # In a container the path may be that of the host, which is not there: the group of the container is then at `base`.
        for each in (folder, *folder.parents):
            left = _left(each, *names)
            if left is not None:
                found.append(left)
            if each == base:
                break
    return found


def _left(folder: Path, limit_file: str, usage_file: str, droppable: str) -> float | None:
    try:
        limit, usage = (int((folder / name).read_text()) for name in (limit_file, usage_file))
    except (OSError, ValueError):  # not there, or "max"
        return None
    return None if limit >= UNLIMITED else limit - usage + _field(folder / "memory.stat", droppable, 0.0)


def _field(path: Path, name: str, missing: float = math.inf) -> float:
    """The number behind `name` in a file of lines "name: number unit"."""
    try:
        for line in path.read_text().splitlines():
            words = line.replace(":", " ").split()
            if words[:1] == [name]:
                return float(words[1])
    except (OSError, ValueError, IndexError):
        pass
    return missing
