"""Whether somebody wrote to memory between two looks at it, found at a cost that does not grow with the memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from hvd_trainer.optim.layout import SAME_SIZE_INT

MOST_SAMPLES = 32  # stretches looked at each time
STRIDE = 7_919  # a prime: the places that are looked at go through all of a stretch


class ChangeGuard:
    """Looks whether memory was changed, at one element of some stretches, others each time.

    A change that goes on from step to step is found in one of the next, at no cost that grows with the model; bits are
    compared, so that NaN equals itself.

    Args:
        stretches: memory as integers, and its length.

    Example:
        >>> memory = torch.zeros(2)
        >>> guard = ChangeGuard([stretch_of(memory, 0, 2)])
        >>> guard.take(); guard.differ()
        False
        >>> memory += 1; guard.differ()
        True
    """

    def __init__(self, stretches: list[tuple[memoryview, int]]) -> None:
        self._stretches, self._count = stretches, 0
        self._taken: Optional[tuple[list[tuple[memoryview, int]], list[int]]] = None

    def take(self) -> None:
        """Remember some elements."""
        self._count += 1
        start = self._count * MOST_SAMPLES
        some, number = self._stretches, len(self._stretches)
        if number > MOST_SAMPLES:
            some = [some[(start + k) % number] for k in range(MOST_SAMPLES)]
        places = [(cells, self._count * STRIDE % length) for cells, length in some]
        self._taken = (places, [cells[at] for cells, at in places])

    def differ(self) -> bool:
        """Whether one of them has changed."""
        return self._taken is not None and [cells[at] for cells, at in self._taken[0]] != self._taken[1]

    def forget(self) -> None:
        """Until the next `take` nothing differs."""
        self._taken = None


class VersionGuard:
    """Looks whether tensors were written to in place, as torch counts it: exact, where `ChangeGuard` needs some looks, but blind to `.data`.

    A tensor and all views of it have one count, which only this process's writes change.

    Args:
        tensors: watched from now on.

    Example:
        >>> memory = torch.zeros(4)
        >>> guard = VersionGuard([memory[:2]])
        >>> guard.differ()
        False
        >>> _ = memory[2:].zero_(); guard.differ(), guard.changed()
        (True, [0])
    """

    def __init__(self, tensors: Sequence[torch.Tensor] = ()) -> None:
        self._tensors = list(tensors)
        self.take()

    def take(self) -> None:
        """Writes so far are no change."""
        self._versions = [tensor._version for tensor in self._tensors]

    def differ(self) -> bool:
        """Whether one of them was written to since."""
        return self._versions != [tensor._version for tensor in self._tensors]

    def changed(self) -> list[int]:
        """The numbers of those that were."""
        return [at for at, (tensor, version) in enumerate(zip(self._tensors, self._versions)) if tensor._version != version]


def stretch_of(flat: torch.Tensor, begin: int, end: int) -> tuple[memoryview, int]:
    """A part of a flat tensor as `ChangeGuard` takes it."""
    return memoryview(flat.view(SAME_SIZE_INT[flat.element_size()]).numpy())[begin:end], end - begin
