"""Which cores this process may use, and what its control group pays for; shared by the comm layer and the launcher."""

from __future__ import annotations

import os
from pathlib import Path


def my_cores() -> list[int]:
    """Physical cores that this process may run on, each by the number of its first hardware thread."""
    logical = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return sorted({first_sibling(cpu) for cpu in logical})


def first_sibling(cpu: int, root: Path = Path("/sys/devices/system/cpu")) -> int:
    """The lowest hardware thread on the core of `cpu`; `cpu` itself where the system does not say."""
    try:
        text = (root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text()
        return int(text.replace("-", ",").split(",")[0])
    except (OSError, ValueError):
        return cpu


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores' worth of time that the container may use, from cgroup 2 or 1; None where there is no limit."""
    try:
        limit, period = (root / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit, period = ((root / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return None
    if limit == "max" or int(limit) <= 0:
        return None
    return int(limit) / int(period)


def cgroup_memory_left(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes below the memory limit of the container, from cgroup 2 or 1; None where there is no limit."""
    for limit_file, used_file in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        try:
            limit, used = (root / limit_file).read_text().strip(), (root / used_file).read_text().strip()
        except OSError:
            continue
        # cgroup 1 writes "no limit" as a number near 2^63.
        return None if limit == "max" or int(limit) >= 2**60 else max(0, int(limit) - int(used))
    return None
