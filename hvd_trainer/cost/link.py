"""Latency and bandwidth inside the node and between nodes, and what an allreduce costs over them (pure)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_trainer.cost.algorithms import BY_NAME, OURS_ON_MPI, Policy, Traffic
from hvd_trainer.errors import ConfigError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True)
class Link:
    """What one message costs: `latency_s + bytes * seconds_per_byte`, and more where something comes the other way.

    Args:
        latency_s: before the first byte, >= 0.
        seconds_per_byte: in one direction, >= 0; 1 / bandwidth.
        duplex: how many times as long a byte takes while one comes the other way: 1 full duplex, 2 half.
    """

    latency_s: float
    seconds_per_byte: float
    duplex: float = 1.0

    def seconds(self, traffic: Traffic, nbytes: float, sharing: int = 1) -> float:
        """One collective over this link.

        Args:
            traffic: its longest chain of messages.
            nbytes: the vector's size in bytes.
            sharing: ranks that send through this link at the same time, >= 1.

        Example:
            >>> from hvd_trainer.cost.algorithms import ring
            >>> round(Link(1e-3, 1e-9).seconds(ring(4), 1e6), 6)
            0.0075
        """
        moved = sharing * nbytes * (traffic.sent + self.duplex * traffic.exchanged)
        return traffic.messages * self.latency_s + moved * self.seconds_per_byte

    def __str__(self) -> str:
        """In the units of network people.

        Example:
            >>> str(Link(2e-5, 8e-9, 1.5)), str(Link(0.0, 0.0))
            ('20 us, 1 Gbit/s, an exchange 1.5x', '0 us, unlimited')
        """
        gbit = "unlimited" if self.seconds_per_byte == 0 else f"{8e-9 / self.seconds_per_byte:.3g} Gbit/s"
        words = [f"{self.latency_s * 1e6:.3g} us", gbit]
        return ", ".join([*words, f"an exchange {self.duplex:.2g}x"] if self.duplex > 1.005 else words)


def parse_link(text: str) -> Link:
    """A link as people write it: bandwidth, latency, and `half` for one that is not full duplex.

    Args:
        text: such as "10gbit,30us"; decimal units.

    Raises:
        ConfigError: something else.

    Example:
        >>> parse_link("8gbit,1ms")
        Link(latency_s=0.001, seconds_per_byte=1e-09, duplex=1.0)
        >>> parse_link("100mbit")
        Traceback (most recent call last):
        ...
        hvd_trainer.errors.ConfigError: --link 100mbit
          allowed: bandwidth,latency with kbit, mbit, gbit and us, ms, s; a third word `half` for half duplex
          fix:     for example: --link 10gbit,30us
    """
    words = re.fullmatch(r"\s*([\d.]+)\s*([kmg]bit)\s*,\s*([\d.]+)\s*(us|ms|s)\s*(,\s*half)?\s*", text.lower())
    try:
        bits_per_s, latency_s = float(words[1]) * _BITS[words[2]], float(words[3]) * _SECONDS[words[4]]
        if bits_per_s <= 0:
            raise ValueError
    except (TypeError, ValueError):
        raise ConfigError(
            f"--link {text}",
            "bandwidth,latency with kbit, mbit, gbit and us, ms, s; a third word `half` for half duplex",
            "for example: --link 10gbit,30us",
        ) from None
    return Link(latency_s, 8.0 / bits_per_s, 2.0 if words[5] else 1.0)


@dataclass(frozen=True)
class LinkModel:
    """Allreduce times for any number of nodes and ranks a node.

    Args:
        inside: between ranks of one node; None where it was not measured.
        between: between nodes; likewise.
        policy: which algorithm is taken for which message.
        fuse_bytes: buckets that are under way together travel as one message of up to this size; 0: each alone.
        small: links of their own for messages below `border_bytes`: MPI sends those at once, and asks before larger ones.
        border_bytes: where that changes.
    """

    inside: Link | None
    between: Link | None
    policy: Policy = OURS_ON_MPI
    fuse_bytes: float = 0.0
    small: LinkModel | None = None
    border_bytes: int = 0

    def allreduce_s(self, nbytes: float, nodes: int, ranks_per_node: int) -> float:
        """Seconds of one allreduce.

        Halving-doubling and trees are done inside the node first, then between nodes: what travels there is the vector
        divided by the ranks of a node, from all of them at once, hence the same as from one leader. In doubling, and for
        the ranks of other nodes in shares, each rank of a node sends as if it were alone there. A ring goes round through all ranks, as fast as its slowest link.

        Args:
            nbytes: the vector's size.
            nodes, ranks_per_node: >= 1.

        Raises:
            ConfigError: a link that it needs is not known.

        Example:
            >>> model = LinkModel(Link(1e-6, 1e-10), Link(1e-4, 1e-8))
            >>> f"{model.allreduce_s(1e6, 1, 2):.6f} {model.allreduce_s(1e6, 4, 1):.6f} {model.allreduce_s(1e6, 4, 2):.6f}"
            '0.000102 0.015400 0.015502'
        """
        if self.small is not None and nbytes < self.border_bytes:
            return self.small.allreduce_s(nbytes, nodes, ranks_per_node)
        name = self.policy.algorithm(nbytes, nodes, ranks_per_node)
        traffic = BY_NAME[name]
        if nodes == 1:
            return 0.0 if ranks_per_node == 1 else self._need("inside").seconds(traffic(ranks_per_node), nbytes)
        if name == "ring":
            return self._need("between").seconds(traffic(nodes * ranks_per_node), nbytes)
        sharing = ranks_per_node if name in ("recursive doubling", "shares") else 1
        between_s = self._need("between").seconds(traffic(nodes), nbytes, sharing)
        if ranks_per_node == 1:
            return between_s
        return between_s + self._need("inside").seconds(traffic(ranks_per_node), nbytes)

    def buckets_s(self, sizes: Sequence[float], nodes: int, ranks_per_node: int) -> float:
        """Seconds of the allreduces of a step, one after the other.

        Args:
            sizes: bytes of each bucket, in the order of sending.
            nodes, ranks_per_node: >= 1.
        """
        # A model has few different sizes and may have thousands of buckets.
        messages = fused(sizes, self.fuse_bytes)
        return sum(
            messages.count(size) * self.allreduce_s(size, nodes, ranks_per_node) for size in dict.fromkeys(messages)
        )

    def _need(self, which: str) -> Link:
        link = getattr(self, which)
        if link is None:
            where = "inside a node" if which == "inside" else "between nodes"
            raise ConfigError(
                f"the link {where} is not known",
                "a link that was measured or given",
                "measure on 2 ranks of one node" if which == "inside" else "measure on 2 nodes, or give --link 10gbit,30us",
            )
        return link


def fused(sizes: Sequence[float], fuse_bytes: float) -> list[float]:
    """Neighbours put together as long as they fit into `fuse_bytes`.

    Example:
        >>> fused([3, 3, 3], 6), fused([3, 3], 0), fused([9, 1], 4)
        ([6, 3], [3, 3], [9, 1])
    """
    if fuse_bytes <= 0:
        return list(sizes)
    messages: list[float] = []
    for size in sizes:
        if messages and messages[-1] + size <= fuse_bytes:
            messages[-1] += size
        else:
            messages.append(size)
    return messages
