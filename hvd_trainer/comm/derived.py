"""Small things built on the Communicator."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import CollectiveError

SHOWN = 8  # groups of ranks named in a message


def agree(comm: Communicator, value: Hashable, what: str) -> None:
    """Raise on all ranks where a value that must be equal everywhere is not.

    Args:
        comm: the job.
        value: this rank's; small, compared by ==.
        what: its name in the message, equal on all ranks.

    Raises:
        CollectiveError: on every rank, naming the ranks and their values.

    Example:
        >>> from hvd_trainer.comm.single import SingleCommunicator
        >>> agree(SingleCommunicator(), 128, "global_batch")
    """
    agree_on(comm.gather_objects(value, f"agree.{what}"), what)


def agree_on(values: Sequence[Hashable], what: str) -> None:
    """As `agree`, on values that were gathered already.

    Example:
        >>> agree_on([8, 8, 9], "global_batch")
        Traceback (most recent call last):
        ...
        hvd_trainer.errors.CollectiveError: the ranks differ in global_batch:
          ranks 0, 1: 8
          rank 2: 9
          allowed: one value on all ranks
          fix:     start all ranks with the same code, arguments and environment; draw random choices from the same seed
    """
    if all(v == values[0] for v in values):
        return
    groups: dict[str, list[int]] = {}
    for rank, v in enumerate(values):
        groups.setdefault(repr(v), []).append(rank)
    lines = [
        f"  rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))}: {v}" for v, r in list(groups.items())[:SHOWN]
    ]
    if len(groups) > SHOWN:
        lines.append(f"  ... and {len(groups) - SHOWN} other values")
    raise CollectiveError(
        f"the ranks differ in {what}:\n" + "\n".join(lines),
        "one value on all ranks",
        "start all ranks with the same code, arguments and environment; draw random choices from the same seed",
    )


def any_rank(comm: Communicator, flag: bool, name: str = "any") -> bool:
    """Whether the flag is set on at least one rank: the same answer on all.

    Example:
        >>> from hvd_trainer.comm.single import SingleCommunicator
        >>> any_rank(SingleCommunicator(), True)
        True
    """
    found = torch.tensor([int(bool(flag))], dtype=torch.int32, device=comm.device)
    return bool(comm.allreduce_(found, name, op="max").wait().item())
