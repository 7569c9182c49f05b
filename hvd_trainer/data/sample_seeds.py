"""The random numbers of a sample are a function of (seed, epoch, index): whoever fetches it, in whatever company.

So augmentation is the same for any number of ranks, any micro-batch and any number of workers, and goes on as it was
after a resume. The process's own states (dropout) are put back afterwards.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def draws_nothing(dataset: Any) -> bool:
    """Whether fetching cannot draw a random number, so that seeding (30 microseconds a sample) would be wasted.

    True of torch's TensorDataset and of lists, tuples and ranges, and of torch's Subset and ConcatDataset of these, where
    the class is exactly that one: a class derived from them may draw.

    Example:
        >>> draws_nothing([1, 2]), draws_nothing(Subset(TensorDataset(torch.zeros(3)), [0, 2]))
        (True, True)
    """
    if type(dataset) is Subset:
        return draws_nothing(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(draws_nothing, dataset.datasets))
    return type(dataset) in (TensorDataset, list, tuple, range)


def seed_key(*numbers: int) -> int:
    """64 bits that belong to these integers (seed, epoch, ...).

    Example:
        >>> seed_key(0, 1) == seed_key(0, 1) != seed_key(1, 0)
        True
    """
    return int(np.random.SeedSequence([number & _MASK64 for number in numbers]).generate_state(1, np.uint64)[0])


def seed_all(key: int, index: int) -> None:
    """Seed python's, numpy's and torch's (CPU) global generators for sample `index` under `key`.

    Splitmix64, so that neighbours have nothing in common. numpy and torch get different halves: both are a Mersenne
    Twister, and the same 32 bits would make the same numbers in both.
    """
    x = (key + (index + 1) * _GOLDEN) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    x ^= x >> 31
    random.seed(x)
    np.random.seed(x >> 32)
    torch.default_generator.manual_seed(x & 0xFFFFFFFF)  # torch.manual_seed would also seed the GPUs


def random_states() -> tuple[Any, ...]:
    """The three global states, to compare or to put back."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def same_states(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether nothing was drawn in between."""
    return (
        a[0] == b[0] and np.array_equal(a[1][1], b[1][1]) and a[1][2:] == b[1][2:] and torch.equal(a[2], b[2])
    )


@contextlib.contextmanager
def states_put_back() -> Iterator[None]:
    """Whatever is seeded or drawn inside does not show outside."""
    python, numpy, torchs = random_states()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)
