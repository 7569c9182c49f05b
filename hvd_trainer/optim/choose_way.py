"""Which way gradients take: through memory of the node, or by messages; by rule, so that repeated runs do the same."""

from __future__ import annotations

from typing import Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.node_memory import obstacle, open_node_memory
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim import shared_sums, small_sums
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.reducer import Way
from hvd_trainer.optim.shared_sums import SharedSums
from hvd_trainer.optim.small_sums import SmallSums
from hvd_trainer.optim.ways import COMPRESSIONS, Messages

WAYS = ("auto", "shared", "messages")
# Whoever chose another engine chose how gradients travel.
AUTO_ENGINES = {"mpi"}


class WayChooser:
    """Opens a way for the buckets of a reducer, and remembers the words for it.

    Args:
        wanted: "auto", "shared" or "messages".
        small: whether small models may go the way made for them.
        compression: of messages: None, "bf16" or "fp16".

    Attributes:
        why: in words, after `open`.
        taken: "shared" or "messages", after `open`.
    """

    def __init__(self, wanted: str, small: bool = True, compression: Optional[str] = None) -> None:
        check_choice("reduce_through", wanted, WAYS)
        check_choice("compression", compression, (None, *COMPRESSIONS))
        self.wanted, self.why, self.taken = wanted, "", "messages"
        self._is_required = wanted == "shared"
        self._small, self._compression = small, compression

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
        if self._is_required:
            raise ConfigError(
                f'reduce_through="shared", but {reason}',
                "CPU ranks on one x86-64 Linux machine with room for their gradients",
                'leave reduce_through="auto", or "messages"',
            )
        way = Messages(buckets, comm, name, self._compression)
        self.taken, self.why = "messages", f"{way.text} ({reason})"
        return way

    def obstacle(self, comm: Communicator) -> str:
        """What of the job is in the way of shared memory, "" where nothing is."""
        if comm.size == 1:
            return "one rank"
        if comm.num_nodes > 1:
            return f"{comm.num_nodes} nodes"
        return obstacle(comm.device)

    def _against_sharing(self, comm: Communicator, buckets: list[Bucket]) -> str:
        if self.wanted == "messages":
            return "as asked"
        reason = self.obstacle(comm)
        if reason:
            return reason
        if self.wanted == "auto" and comm.engine not in AUTO_ENGINES:
            return f"engine {comm.engine}"
        devices = {bucket.device.type for bucket in buckets} - {"cpu"}
        return obstacle(torch.device(devices.pop()) if devices else comm.device)


def check_choice(name: str, given: Optional[str], allowed: tuple[Optional[str], ...]) -> None:
    """Raise ConfigError unless it is one of those allowed; the first is what is taken where nothing is given."""
    if given not in allowed:
        raise ConfigError(f"{name}={given!r}", ", ".join(repr(each) for each in allowed), f"leave it {allowed[0]!r}")
