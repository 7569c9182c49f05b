"""The order of samples: a bijection for any size, the same however it is cut, and as good as a table of random numbers."""

import math

import numpy as np
import pytest

from hvd_trainer.data.order import sample_order
from tests.properties import given, settings, st

SMALL = [2, 3, 4, 5, 8, 17]


def whole(num_samples, seed=0, epoch=0):
    return sample_order(np.arange(num_samples), num_samples, seed, epoch)


def chi_square_limit(freedom):
    """Exceeded once in a million for a uniform source (normal approximation of Wilson and Hilferty)."""
    return freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3


@given(st.integers(1, 3000), st.integers(-(2**70), 2**70), st.integers(0, 10**6))
def test_every_index_once(num_samples, seed, epoch):
    assert np.array_equal(np.sort(whole(num_samples, seed, epoch)), np.arange(num_samples))


@pytest.mark.parametrize("num_samples", [2**k + d for k in range(1, 13) for d in (-1, 0, 1)])
def test_every_index_once_around_powers_of_two(num_samples):
    assert np.array_equal(np.sort(whole(num_samples)), np.arange(num_samples))


@given(st.integers(1, 2**62), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
@settings(max_examples=30)
def test_any_position_of_any_size(num_samples, places):
    """Also of 2^62 samples: at once, in range, and different for different positions."""
    positions = np.unique(np.array([min(int(place * num_samples), num_samples - 1) for place in places], dtype=np.int64))
    found = sample_order(positions, num_samples, 3, 5)
    assert found.dtype == np.int64
    assert ((found >= 0) & (found < num_samples)).all()
    assert len(np.unique(found)) == len(positions)


@given(st.integers(2, 500), st.data())
def test_a_position_does_not_depend_on_its_company(num_samples, data):
    everything = whole(num_samples, 7, 2)
    some = data.draw(st.lists(st.integers(0, num_samples - 1), max_size=20))
    assert np.array_equal(sample_order(np.array(some, dtype=np.int64), num_samples, 7, 2), everything[some])


def test_no_positions_and_untouched_argument():
    assert sample_order(np.arange(0), 5, 0, 0).tolist() == []
    positions = np.arange(10)
    sample_order(positions, 10, 0, 0)
    assert positions.tolist() == list(range(10))


def test_other_epochs_and_seeds_have_other_orders():
    orders = {whole(100, seed, epoch).tobytes() for seed in (-2, -1, 0, 1, 2, 2**63) for epoch in range(50)}
    assert len(orders) == 6 * 50


def test_pinned():
    """A checkpoint goes on in this order: it must never change."""
    assert whole(10, seed=0, epoch=0).tolist() == [4, 6, 8, 9, 0, 2, 5, 7, 3, 1]
    assert sample_order(np.array([0, 10**9]), 10**12, 1, 2).tolist() == [226995740346, 19627142835]


@pytest.mark.parametrize("num_samples", SMALL)
def test_each_index_equally_often_at_each_position(num_samples):
    epochs = 1000
    counts = np.zeros((num_samples, num_samples))
    for epoch in range(epochs):
        counts[np.arange(num_samples), whole(num_samples, 11, epoch)] += 1
    expected = epochs / num_samples
    assert ((counts - expected) ** 2 / expected).sum() < chi_square_limit((num_samples - 1) ** 2)


@pytest.mark.parametrize("num_samples", [3, 4, 5])
def test_every_permutation_of_a_few_is_equally_frequent(num_samples):
    epochs = 2400
    found, counts = np.unique([whole(num_samples, 5, epoch) for epoch in range(epochs)], axis=0, return_counts=True)
    assert len(found) == math.factorial(num_samples)
    expected = epochs / len(found)
    assert ((counts - expected) ** 2 / expected).sum() < chi_square_limit(len(found) - 1)


@pytest.mark.parametrize("num_samples", [5, 8, 13])
def test_neighbours_are_independent(num_samples):
    """Which index follows which: every ordered pair equally often."""
    epochs = 1000
    counts = np.zeros((num_samples, num_samples))
    for epoch in range(epochs):
        order = whole(num_samples, 2, epoch)
        np.add.at(counts, (order[:-1], order[1:]), 1)
    assert not counts.diagonal().any()
    expected = epochs * (num_samples - 1) / (num_samples * (num_samples - 1))
    off = counts[~np.eye(num_samples, dtype=bool)]
    assert ((off - expected) ** 2 / expected).sum() < chi_square_limit(len(off) - 1)


@pytest.mark.parametrize("num_samples", [10, 100, 4096, 100_000])
def test_fixed_points_and_descents(num_samples):
    """A random order has one fixed point on average and falls as often as it rises."""
    epochs = max(10, min(400, 500_000 // num_samples))
    orders = [whole(num_samples, 1, epoch) for epoch in range(epochs)]
    fixed = np.mean([(order == np.arange(num_samples)).sum() for order in orders])
    assert abs(fixed - 1) < 5 / math.sqrt(epochs)
    falls = np.mean([(np.diff(order) < 0).mean() for order in orders])
    assert abs(falls - 0.5) < 5 * math.sqrt(1 / 12 / num_samples / epochs) + 1e-12


def test_epochs_are_independent():
    """Where an index stood in one epoch says nothing about the next, nor one seed about the next."""
    n = 20_000
    orders = [whole(n, seed, epoch) for seed in range(2) for epoch in range(2)]
    for a in range(4):
        for b in range(a):
            assert abs(np.corrcoef(orders[a], orders[b])[0, 1]) < 5 / math.sqrt(n)


def test_batches_see_all_of_a_sorted_data_set():
    """A data set sorted by class: a batch of 256 has each of 10 classes about as often as chance gives it."""
    n, batch = 50_000, 256
    classes = whole(n, 4, 0) // (n // 10)
    counts = np.array([np.bincount(classes[at : at + batch], minlength=10) for at in range(0, n - batch, batch)])
    statistic = ((counts - batch / 10) ** 2 / (batch / 10)).sum(1)
    assert abs(statistic.mean() - 9) < 5 * math.sqrt(18 / len(statistic))


def chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


AROUND_POWERS_OF_FOUR = [4**k + d for k in (5, 6, 8) for d in (-1, 0, 1)] + [3 * 4**7, 4**8 * 3 // 2]


@pytest.mark.parametrize("num_samples", AROUND_POWERS_OF_FOUR)
def test_no_serial_correlation(num_samples):
    """Neither with the position nor with what stands some places further: where n just fits and where walking is long."""
    for epoch in range(3):
        order = whole(num_samples, 9, epoch).astype(float)
        assert abs(np.corrcoef(order, np.arange(num_samples))[0, 1]) < 5 / math.sqrt(num_samples)
        for lag in (1, 2, 3, 4, 16, 64, 256):
            assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 5 / math.sqrt(num_samples - lag), lag


@pytest.mark.parametrize("num_samples", [10**6, 10**9, 4**15, 4**15 + 1, 10**12])
def test_any_stretch_of_a_large_order_is_uniform(num_samples):
    """200,000 positions in a row: leading parts, last bits, and both of neighbours together."""
    at = num_samples // 3
    order = sample_order(np.arange(at, at + 200_000), num_samples, 5, 1)
    # Drawn without replacement, so counts of a fifth of all 10^6 vary a little less than chance: the limit holds all the more.
    parts, bits = order // -(-num_samples // 64), order % 64
    for digits in (parts, bits):
        assert chi_square(np.bincount(digits, minlength=64)[: digits.max() + 1]) < chi_square_limit(digits.max())
        pairs = np.bincount(digits[:-1] * 64 + digits[1:], minlength=64 * 64)
        assert chi_square(pairs) < chi_square_limit(64 * 64 - 1)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / math.sqrt(len(order))


def test_neighbouring_seeds_and_epochs_of_a_large_order_differ_in_half_of_the_bits():
    n = 4**15
    base = sample_order(np.arange(20_000), n, 5, 1)
    for seed, epoch in ((4, 1), (6, 1), (5, 0), (5, 2), (5 + 2**32, 1)):
        changed = np.unpackbits((base ^ sample_order(np.arange(20_000), n, seed, epoch)).view(np.uint8)).reshape(20_000, 64)
        shares = np.sort(changed.mean(0))[-30:]  # the other 34 bits are always 0
        assert (np.abs(shares - 0.5) < 5 * 0.5 / math.sqrt(20_000)).all()
