"""Pure: into which pieces a rank cuts its share of a flat buffer for the optimizer's update."""

from __future__ import annotations

import torch

from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.lamb import LAMB
from hvd_trainer.optim.lars import LARS

# Each element of a parameter depends on the same element of gradient and state, and on numbers of the group.
ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adadelta,
    torch.optim.Rprop,
)
# As these, but for norms of whole tensors, which they let somebody sum over parts (`LayerwiseOptimizer.sum_squares`).
LAYERWISE = (LARS, LAMB)


def cut_by_length(first: int, last: int, length: int) -> list[tuple[int, int]]:
    """`first` to `last` in stretches of `length`, the last one shorter.

    Example:
        >>> cut_by_length(10, 25, 10), cut_by_length(10, 10, 10)
        ([(10, 20), (20, 25)], [])
    """
    return [(start, min(start + length, last)) for start in range(first, last, length)]


def cut_by_tensor(bucket: Bucket, first: int, last: int) -> list[tuple[int, int]]:
    """The part of every tensor of the bucket that lies between `first` and `last`; empty where there is none.

    Example:
        >>> from hvd_trainer.optim.buckets import Slot
        >>> bucket = Bucket(torch.float32, torch.device("cpu"), (Slot(0, 0, 20), Slot(1, 20, 5), Slot(2, 25, 9)))
        >>> cut_by_tensor(bucket, 16, 32), cut_by_tensor(bucket, 0, 16)
        ([(16, 20), (20, 25), (25, 32)], [(0, 16), (16, 16), (16, 16)])
    """
    inside = [(min(max(at, first), last) for at in (slot.offset, slot.offset + slot.numel)) for slot in bucket.slots]
    return [(begin, end) for begin, end in inside]


def adapts_of(group: dict, params: list[torch.Tensor]) -> list[bool]:
    """Which of these parameters, all of the group, have a rate of their own; for `LAYERWISE` optimizers."""
    by_id = {id(param): adapts for param, adapts in zip(group["params"], group["adapts"])}
    return [by_id[id(param)] for param in params]
