"""Which way gradients take: through memory of the node, or by messages; by rule, so that repeated runs do the same."""

from __future__ import annotations

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.node_memory import obstacle, open_node_memory
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim import shared_sums, small_sums
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.reducer import Way
from hvd_trainer.optim.shared_sums import SharedSums
from hvd_trainer.optim.small_sums import SmallSums
from hvd_trainer.optim.ways import Messages

WAYS = ("auto", "shared", "messages")
# Whoever chose another engine chose how gradients travel.
AUTO_ENGINES = {"mpi"}


class WayChooser:
    """Opens a way for the buckets of a reducer, and remembers the words for it.

    Args:
        wanted: "auto", "shared" or "messages".
        small: whether small models may go the way made for them.

    Attributes:
        why: in words, after `open`.
        taken: "shared" or "messages", after `open`.
    """

    def __init__(self, wanted: str, small: bool = True) -> None:
        check_choice("reduce_through", wanted, WAYS)
        self.wanted, self.why, self.taken = wanted, "", "messages"
        self._small = small

    def open(self, buckets: list[Bucket], comm: Communicator, name: str) -> Way:
        """The way for these buckets; a collective.

        Raises:
            ConfigError: shared memory is wanted and cannot be had; on all ranks.
        """
        reason = self._against_sharing(comm, buckets)
        if not reason:
            kind = small_sums if self._small and small_sums.is_small(buckets, comm.local_size) else shared_sums
            num_params = sum(len(bucket.slots) for bucket in buckets)
            pieces = kind.piece_bytes(buckets, comm.local_size, num_params)
            memory, reason = open_node_memory(comm, pieces, shared_sums.NUM_COUNTERS, f"{name}.memory")
            if memory is not None:
                way = SmallSums if kind is small_sums else SharedSums
                self.taken, self.why = "shared", way.text
                return way(memory, buckets, comm, num_params)
        if self.wanted == "shared":
            raise ConfigError(
                f'reduce_through="shared", but {reason}',
                "CPU ranks on one x86-64 Linux machine with room for their gradients",
                'leave reduce_through="auto", or "messages"',
            )
        self.taken, self.why = "messages", f"{Messages.text} ({reason})"
        return Messages(buckets, comm, name)

    def _against_sharing(self, comm: Communicator, buckets: list[Bucket]) -> str:
        if self.wanted == "messages":
            return "as asked"
        if comm.size == 1:
            return "one rank"
        if comm.num_nodes > 1:
            return f"{comm.num_nodes} nodes"
        if self.wanted == "auto" and comm.engine not in AUTO_ENGINES:
            return f"engine {comm.engine}"
        devices = {bucket.device.type for bucket in buckets} - {"cpu"}
        return obstacle(torch.device(devices.pop()) if devices else comm.device)


def check_choice(name: str, given: str, allowed: tuple[str, ...]) -> None:
    """Raise ConfigError unless it is one of those allowed."""
    if given not in allowed:
        raise ConfigError(f"{name}={given!r}", ", ".join(repr(each) for each in allowed), 'leave it "auto"')
