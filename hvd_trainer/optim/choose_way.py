"""Which way gradients take: through memory of the node, or by messages; by rule, so that repeated runs do the same."""

from __future__ import annotations

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.node_memory import obstacle, open_node_memory
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.reducer import Way
from hvd_trainer.optim.shared_sums import NUM_COUNTERS, SharedSums, piece_bytes
from hvd_trainer.optim.ways import Messages

WAYS = ("auto", "shared", "messages")
# Whoever chose another engine chose how gradients travel.
AUTO_ENGINES = {"mpi"}


class WayChooser:
    """Opens a way for the buckets of a reducer, and remembers the words for it.

    Args:
        wanted: "auto", "shared" or "messages".

    Attributes:
        why: in words, after `open`.
        taken: "shared" or "messages", after `open`.
    """

    def __init__(self, wanted: str) -> None:
        check_way(wanted)
        self.wanted, self.why, self.taken = wanted, "", "messages"

    def open(self, buckets: list[Bucket], comm: Communicator, name: str) -> Way:
        """The way for these buckets; a collective.

        Raises:
            ConfigError: shared memory is wanted and cannot be had; on all ranks.
        """
        reason = self._against_sharing(comm, buckets)
        if not reason:
            num_params = sum(len(bucket.slots) for bucket in buckets)
            memory, reason = open_node_memory(comm, piece_bytes(buckets, comm.local_size, num_params), NUM_COUNTERS, f"{name}.memory")
            if memory is not None:
                self.taken, self.why = "shared", SharedSums.text
                return SharedSums(memory, buckets, comm, num_params)
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


def check_way(wanted: str) -> None:
    """Raise ConfigError unless it is one of `WAYS`."""
    if wanted not in WAYS:
        raise ConfigError(f"reduce_through={wanted!r}", ", ".join(repr(way) for way in WAYS), 'leave it "auto"')
