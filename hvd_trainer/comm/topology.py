"""Node numbers, local ranks and GPU indices, worked out from the host of every rank (pure)."""

from __future__ import annotations

import socket
from collections.abc import Hashable, Sequence

from hvd_trainer.comm.api import Topology


def this_host() -> tuple[str, str]:
    """What tells nodes apart: the host name, and the boot id for machines that share a name ("localhost")."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot


def from_hosts(rank: int, hosts: Sequence[Hashable]) -> Topology:
    """A rank's place in the job; nodes are numbered in the order of their lowest rank, local ranks by rank.

    Args:
        rank: 0 .. len(hosts) - 1.
        hosts: the host of each rank, equal for ranks on one node.

    Example:
        >>> from_hosts(2, ["a", "b", "a"])
        Topology(rank=2, size=3, local_rank=1, local_size=2, node=0, num_nodes=2)
    """
    nodes = list(dict.fromkeys(hosts))
    local = [r for r, host in enumerate(hosts) if host == hosts[rank]]
    return Topology(rank, len(hosts), local.index(rank), len(local), nodes.index(hosts[rank]), len(nodes))


def device_index(local_rank: int, visible: int) -> int:
    """The CUDA index for a rank: the only one where the scheduler shows each task its own, else the local rank.

    Example:
        >>> device_index(3, 1), device_index(3, 8)
        (0, 3)
    """
    return 0 if visible == 1 else local_rank
