"""How many CPU threads each rank computes with, so that ranks x threads fit the cores of the node."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import torch

from hvd_trainer import env as environment


def threads_for(rank: int, cores: Sequence[Collection[int]], quota: float | None = None) -> int:
    """Threads for one rank of a node.

    Args:
        rank: local rank, 0 .. len(cores) - 1.
        cores: for each local rank, the physical cores that its affinity mask allows. A core that k ranks share counts
            as 1/k for each of them.
        quota: cores' worth of time that the cgroup grants to all of them together; None: no limit.

    Returns:
        At least 1.

    Example:
        >>> threads_for(0, [{0, 1, 2, 3}, {0, 1, 2, 3}]), threads_for(0, [{0}, {1}]), threads_for(0, [{0, 1, 2}], quota=2.5)
        (2, 1, 2)
    """
    share = sum(Fraction(1, sum(core in mask for mask in cores)) for core in set(cores[rank]))
    if quota is not None:
        share = min(share, Fraction(quota) / len(cores))
    return max(1, int(share))


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


def apply(threads: int, env: Mapping[str, str]) -> str:
    """Set torch's threads, unless the user fixed them in the environment; returns the words for the start line."""
    fixed = environment.user_threads(env)
    if not fixed:
        torch.set_num_threads(threads)
    count = torch.get_num_threads()
    text = f"{count} CPU thread{'s' if count != 1 else ''} a rank"
    return f"{text} ({fixed})" if fixed else text
