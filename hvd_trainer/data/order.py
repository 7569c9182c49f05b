"""Pure: the order of the samples of an epoch, computed for any position alone, without a table.

A table of 10^9 shuffled indices takes gigabytes on every rank and seconds to make; a keyed bijection of 0..n-1 takes
nothing, and a resume in mid-epoch starts at any position at once.
"""

from __future__ import annotations

import numpy as np
import numpy.random  # noqa: F401 - else the first epoch waits for this import

NUM_ROUNDS = 8
_MASK64 = (1 << 64) - 1


def sample_order(positions: np.ndarray, num_samples: int, seed: int, epoch: int) -> np.ndarray:
    """Which sample stands at each position of an epoch's shuffled order.

    A Feistel network is a bijection on 2^(2h) numbers; walking on until the result is below n makes it one on 0..n-1
    (at most about 4 rounds of walking on average).

    Args:
        positions: int64 array of positions, each 0 .. num_samples - 1.
        num_samples: n, 1 .. 2^62.
        seed: any integer.
        epoch: 0, 1, ...

    Returns:
        int64 array of sample indices, as long as `positions`; all positions together give every index once.

    Example:
        >>> sorted(sample_order(np.arange(7), 7, seed=0, epoch=3).tolist())
        [0, 1, 2, 3, 4, 5, 6]

    Source: Black & Rogaway 2002, "Ciphers with arbitrary finite domains" (cycle walking on a Feistel network).
    """
    half_bits = max(1, (max(num_samples - 1, 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    keys = _round_keys(seed, epoch)
    values = np.asarray(positions, dtype=np.uint64).copy()
    walking = np.arange(values.size)
    while walking.size:
        left, right = values[walking] >> shift, values[walking] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        values[walking] = (left << shift) | right
        walking = walking[values[walking] >= np.uint64(num_samples)]
    return values.astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _round_keys(seed: int, epoch: int) -> list[np.uint64]:
    state = np.random.SeedSequence([seed & _MASK64, epoch]).generate_state(NUM_ROUNDS, np.uint64)
    return list(state)
