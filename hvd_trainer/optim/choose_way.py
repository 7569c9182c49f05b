"""Which way gradients take: through memory of the node, by messages, or one inside nodes and the other between them; by rule, so that repeated runs do the same."""

from __future__ import annotations

from typing import Any, Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.node_memory import obstacle, open_node_memory
from hvd_trainer.errors import ConfigError
from hvd_trainer.log import say
from hvd_trainer.optim import shared_sums, small_messages, small_sums
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.node_sums import NodeSums, node_sizes, shown
from hvd_trainer.optim.reducer import Way
from hvd_trainer.optim.shared_sums import SharedSums
from hvd_trainer.optim.small_messages import SmallMessages
from hvd_trainer.optim.small_sums import SmallSums
from hvd_trainer.optim.ways import COMPRESSIONS, Messages

WAYS = ("auto", "shared", "messages")
# Whoever chose another engine chose how gradients travel.
AUTO_ENGINES = {"mpi"}
AS_SAVED = "as before the checkpoint was saved"


class WayChooser:
    """Opens a way for the buckets of a reducer, and remembers the words for it.

    Args:
        wanted: "auto", "shared" or "messages".
        small: whether small models may go the way made for them.
        compression: of messages: None, "bf16" or "fp16".

    Attributes:
        saved: what was taken before a checkpoint was saved that was loaded since; it counts where nothing else is wanted.
        why: in words, after `open`.
        taken: "shared" or "messages", after `open`.
        node_sizes: ranks of each node, after `open`.
    """

    def __init__(self, wanted: str, small: bool = True, compression: Optional[str] = None) -> None:
        check_choice("reduce_through", wanted, WAYS)
        check_choice("compression", compression, (None, *COMPRESSIONS))
        self.wanted, self.saved, self.why, self.taken = wanted, "", "", "messages"
        self.node_sizes: list[int] = []
        self._is_required = wanted == "shared"
        self._small, self._compression = small, compression

    def open(self, buckets: list[Bucket], comm: Communicator, name: str) -> Way:
        """The way for these buckets; a collective.

        Raises:
            ConfigError: shared memory is wanted and cannot be had; on all ranks.
        """
        way: Way
        reason = self._against_sharing(comm, buckets)
        self.node_sizes = node_sizes(comm, f"{name}.nodes")
        if not reason:
            is_small = self._small and comm.num_nodes == 1 and small_sums.is_small(buckets, comm.local_size)
            kind = small_sums if is_small else shared_sums
            num_params = sum(len(bucket.slots) for bucket in buckets)
            pieces = kind.piece_bytes(buckets, comm.local_size, num_params)
            memory, reason = open_node_memory(comm, pieces, shared_sums.NUM_COUNTERS, f"{name}.memory")
            if memory is not None:
                if comm.num_nodes > 1:
                    way = NodeSums(memory, buckets, comm, num_params, self.node_sizes, name, self._compression)
                else:
                    way = (SmallSums if is_small else SharedSums)(memory, buckets, comm, num_params)
                self.taken, self.why = "shared", way.text
                return way
        if self._is_required:
            raise ConfigError(
                f'reduce_through="shared", but {reason}',
                "CPU ranks on x86-64 Linux machines with room for their gradients; on several nodes, engine mpi and more than one "
                "rank on some",
                'leave reduce_through="auto", or "messages"',
            )
        is_small = self._small and self._compression is None and small_messages.is_small(buckets, comm.size)
        way = SmallMessages(buckets, comm, name) if is_small else Messages(buckets, comm, name, self._compression)
        self.taken, self.why = "messages", f"{way.text} ({reason})"
        return way

    def compare_nodes(self, saved: dict[str, Any], comm: Communicator) -> None:
        """Say where a resumed run sums in another order than before, because its ranks lie on the nodes in another way."""
        before = saved.get("node_sizes")
        if before and saved["reduce_through"] == self.taken == "shared" and before != self.node_sizes:
            text = f"resumed: {shown(before)} -> {shown(self.node_sizes)}; gradients are summed in another order than before"
            say(f"hvd_trainer: {text}", rank=comm.rank)

    def obstacle(self, comm: Communicator) -> str:
        """What of the job is in the way of shared memory, "" where nothing is."""
        if comm.size == 1:
            return "one rank"
        if comm.num_nodes > 1 and not comm.has_bridges:
            return f"{comm.num_nodes} nodes, which engine {comm.engine} does not join"
        if comm.num_nodes == comm.size:
            return "one rank on each node"
        return obstacle(comm.device)

    def _against_sharing(self, comm: Communicator, buckets: list[Bucket]) -> str:
        if self.wanted == "messages":
            return "as asked"
        reason = self.obstacle(comm)
        if reason:
            return reason
        if self.wanted == "auto" and self.saved == "messages":
            return AS_SAVED
        if self.wanted == "auto" and not self.saved and comm.engine not in AUTO_ENGINES:
            return f"engine {comm.engine}"
        devices = {bucket.device.type for bucket in buckets} - {"cpu"}
        return obstacle(torch.device(devices.pop()) if devices else comm.device)


def check_choice(name: str, given: Optional[str], allowed: tuple[Optional[str], ...]) -> None:
    """Raise ConfigError unless it is one of those allowed; the first is what is taken where nothing is given."""
    if given not in allowed:
        raise ConfigError(f"{name}={given!r}", ", ".join(repr(each) for each in allowed), f"leave it {allowed[0]!r}")
