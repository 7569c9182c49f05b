"""How many CPU threads each rank computes with, so that ranks x threads fit the cores of the node."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction

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


def apply(threads: int, env: Mapping[str, str]) -> str:
    """Set torch's threads, unless the user fixed them in the environment; returns the words for the start line."""
    fixed = environment.user_threads(env)
    if not fixed:
        torch.set_num_threads(threads)
    count = torch.get_num_threads()
    text = f"{count} CPU thread{'s' if count != 1 else ''} a rank"
    return f"{text} ({fixed})" if fixed else text
