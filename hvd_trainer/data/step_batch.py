"""What a loader gives for one optimizer step, whatever kind of data it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass sees.

    Args:
        data: what the collate function made of the samples, its tensors on `comm.device`.
        num_samples: how many went in; 0 only for the batches that fill up (see `Loader.epoch`).
        last: whether it is this rank's last one of the step.
    """

    data: Any
    num_samples: int
    last: bool


@dataclass(frozen=True)
class StepBatch:
    """One rank's share of one global batch; iterate for the micro-batches (none where the rank has no sample).

    Args:
        step: number of the step in its epoch, from 0.
        global_samples: samples of the global batch over all ranks.
        indices: this rank's samples (of a stream: their positions), one list a micro-batch.
        is_last: whether the epoch ends with it.
    """

    step: int
    global_samples: int
    indices: list[list[int]]
    is_last: bool
    _fetch: Callable[[int, list[int]], Any]

    def __iter__(self) -> Iterator[MicroBatch]:
        for number, indices in enumerate(self.indices):
            yield MicroBatch(self._fetch(number, indices), len(indices), last=number == len(self.indices) - 1)
