"""Noise estimators against the vectors, by Monte Carlo against a closed form, and their interval by its coverage."""

import numpy as np
import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.noise import gain, step_estimates, t_quantile
from tests.properties import assume, given, st
from tests.vectors import vector

EXACT, FINITE, LOW, ADASCALE = (vector(name) for name in ("noise_scale_exact", "noise_scale_without_replacement", "noise_scale_low_signal", "adascale"))
GRADS = np.array(EXACT.inputs["rank_grads"])


def parts(grads, sizes):
    """|g_i|^2 and |averaged|^2."""
    sizes = np.broadcast_to(sizes, len(grads))
    mean = (sizes[:, None] * grads).sum(0) / sizes.sum()
    return [float(g @ g) for g in grads], float(mean @ mean)


@pytest.mark.parametrize(("sizes", "expected"), [(EXACT.inputs["local_batch"], EXACT.expected), (EXACT.inputs["uneven_local_batches"], EXACT.expected["uneven"])], ids=["even", "uneven"])
def test_one_step(sizes, expected):
    estimate = ht.noise_scale(*parts(GRADS, sizes), sizes)
    assert (estimate.signal, estimate.noise, estimate.ratio) == pytest.approx((expected["G2"], expected["S"], expected["B_simple"]), rel=EXACT.rtol)
    assert estimate.value is None and "one step" in str(estimate)


def test_two_forms_of_the_same_estimator():
    """The textbook's: b small, B big."""
    local, mean = parts(GRADS, 8)
    small, b, big = np.mean(local), 8, 32
    assert small == pytest.approx(EXACT.expected["sq_small"]) and mean == pytest.approx(EXACT.expected["sq_big"])
    assert step_estimates(small, mean, big, 4) == pytest.approx(((big * mean - b * small) / (big - b), (small - mean) / (1 / b - 1 / big)), rel=1e-12)


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), st.integers(0, 2**20), st.permutations(range(6)))
def test_order_of_ranks_and_units_do_not_matter(sizes, seed, order):
    grads = np.random.default_rng(seed).normal(size=(len(sizes), 3)) + 1
    order = [index for index in order if index < len(sizes)]
    here = ht.noise_scale(*parts(grads, sizes), sizes)
    there = ht.noise_scale(*parts(grads[order], np.array(sizes)[order]), [sizes[i] for i in order])
    assert (there.signal, there.noise) == pytest.approx((here.signal, here.noise), rel=1e-9, abs=1e-12)
    assume(abs(here.noise) > 1e-9)
    doubled = ht.noise_scale(*parts(grads, sizes), [2 * size for size in sizes])
    assert (doubled.signal, doubled.noise) == pytest.approx((here.signal, 2 * here.noise), rel=1e-9)


def linear_gaussian(lam, delta, sigma, local_batch, ranks, steps, seed):
    """Squared norms of a least-squares problem: y = x.w + noise, x ~ N(0, diag lam), the weights off by delta."""
    rng, lam, delta = np.random.default_rng(seed), np.array(lam), np.array(delta)
    local, mean = [], []
    for _ in range(0, steps, 1000):
        x = rng.normal(size=(1000, ranks, local_batch, len(lam))) * np.sqrt(lam)
        residual = x @ delta - sigma * rng.normal(size=x.shape[:-1])
        g = (residual[..., None] * x).mean(2)
        local.extend((g**2).sum(-1).tolist())
        mean.extend((g.mean(1) ** 2).sum(-1).tolist())
    signal = ((lam * delta) ** 2).sum()
    noise = lam.sum() * ((lam * delta**2).sum() + sigma**2) + signal
    return local[:steps], mean[:steps], signal, noise


def test_low_signal_is_not_clipped_away():
    """Near the optimum 44 % of the steps have |G|^2 < 0: the ratio of means is right, what others do is not."""
    inputs = LOW.inputs
    local, mean, signal, noise = linear_gaussian(*(inputs[k] for k in ("lam", "delta", "sigma", "local_batch", "ranks", "steps", "seed")))
    assert noise / signal == pytest.approx(LOW.expected["B_simple_true"], rel=1e-9)
    estimate = ht.noise_scale(local, mean, inputs["local_batch"])
    assert estimate.value == pytest.approx(LOW.expected["B_simple_true"], rel=LOW.rtol)
    assert estimate.low < LOW.expected["B_simple_true"] < estimate.high
    steps = [step_estimates(sum(pair) / 2, m, 16, 2) for pair, m in zip(local, mean)]
    assert np.mean([signal < 0 for signal, _ in steps]) == pytest.approx(LOW.expected["fraction_negative_G2"], abs=0.01)
    clipped = np.mean([noise for _, noise in steps]) / np.mean([max(signal, 0) for signal, _ in steps])
    assert clipped == pytest.approx(LOW.expected["WRONG_clip_each_step_then_average"], rel=LOW.rtol)  # so the test can tell


def test_uneven_parts_are_unbiased():
    rng, sizes = np.random.default_rng(3), [1, 2, 5, 24]
    samples = rng.normal(size=(4000, sum(sizes), 3)) * [2.0, 1.0, 1.0] + [0.5, 0.0, 0.25]  # |G|^2 = 0.3125, tr = 6
    cuts = np.split(samples, np.cumsum(sizes)[:-1], axis=1)
    local = [[float((c[step].mean(0) ** 2).sum()) for c in cuts] for step in range(len(samples))]
    mean = (samples.mean(1) ** 2).sum(-1).tolist()
    estimate = ht.noise_scale(local, mean, sizes)
    assert estimate.signal == pytest.approx(0.3125, rel=0.06) and estimate.noise == pytest.approx(6.0, rel=0.03)
    assert ht.noise_scale(local, mean, [sizes] * len(mean)) == estimate


def test_shards_of_a_finite_set():
    grads, n = np.array(FINITE.inputs["per_sample_gradients"]), len(FINITE.inputs["per_sample_gradients"])
    rng, (b, ranks) = np.random.default_rng(1), (FINITE.inputs["local_batch"], FINITE.inputs["ranks"])
    chosen = rng.permuted(np.tile(np.arange(n), (10_000, 1)), axis=1)[:, : b * ranks].reshape(-1, ranks, b)
    g = grads[chosen].mean(2)
    local, mean = (g**2).sum(-1).tolist(), (g.mean(1) ** 2).sum(-1).tolist()
    plain, corrected = ht.noise_scale(local, mean, b), ht.noise_scale(local, mean, b, num_samples=n)
    assert plain.noise == corrected.noise == pytest.approx(FINITE.expected["S"], rel=FINITE.rtol)
    assert plain.signal == pytest.approx(FINITE.expected["G2_estimate_expected"], rel=FINITE.rtol)
    assert corrected.signal == pytest.approx(FINITE.expected["G2_empirical"], rel=FINITE.rtol)


def test_the_interval_covers_and_undetermined_is_said():
    """95 % intervals from 40 steps on 4 ranks held the truth in 95.8 % of 500 runs; with a tenth of the signal half of them
    were undetermined, and 1.4 % claimed an interval that did not hold it."""
    inputs = {"lam": [4, 2, 1, 0.5, 0.25], "sigma": 0.7, "local_batch": 8, "ranks": 4}
    for delta, determined_at_least in (([0.5, -0.3, 0.8, 1.0, -1.2], 0.99), ([0.05, -0.03, 0.08, 0.1, -0.12], 0.0)):
        local, mean, signal, noise = linear_gaussian(delta=delta, steps=20_000, seed=5, **inputs)
        estimates = [ht.noise_scale(local[i : i + 40], mean[i : i + 40], 8) for i in range(0, 20_000, 40)]
        inside = [e.low <= noise / signal <= e.high for e in estimates if e.value is not None]
        assert len(inside) / len(estimates) >= determined_at_least
        assert sum(not hit for hit in inside) / len(estimates) < 0.07
    assert len(inside) < len(estimates)  # the low signal leaves some undetermined


def test_pure_noise_is_undetermined_and_no_noise_is_zero():
    rng = np.random.default_rng(0)
    g = rng.normal(size=(200, 2, 10))
    local, mean = (g**2).sum(-1).tolist(), (g.mean(1) ** 2).sum(-1).tolist()
    estimate = ht.noise_scale(local, mean, 8)
    assert estimate.value is None and "not above" in str(estimate)
    same = ht.noise_scale([[2.0, 2.0]] * 10, [2.0] * 10, 8)
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    assert "too few" in ht.noise_scale([[2.0, 2.0]] * 3, [2.0] * 3, 8).reason


@pytest.mark.parametrize(
    "arguments",
    [([1.0], 1.0, 8), ([1.0, 2.0], 1.0, [8]), ([[1.0, 2.0]], [1.0, 2.0], 8), ([], [], 8), ([[1.0, 2.0]] * 2, [1.0] * 2, [[8, 8]])],
    ids=str,
)
def test_what_cannot_be(arguments):
    with pytest.raises(ConfigError):
        ht.noise_scale(*arguments)


def test_gain_vectors():
    for name, expected in ADASCALE.expected["gain_from_noise_scale"].items():
        given = dict(part.split("=") for part in name.split(","))
        assert gain(float(given["Bn"]), float(given["b"]), float(given["B"])) == pytest.approx(expected, rel=ADASCALE.rtol)


@given(st.floats(0, 1e9), st.integers(1, 10**6), st.integers(1, 1000))
def test_gain_is_between_one_and_k(noise, reference, k):
    value = gain(noise, reference, k * reference)
    assert 1 - 1e-12 <= value <= k * (1 + 1e-12)
    assert value * gain(noise, k * reference, reference) == pytest.approx(1.0)


def test_gain_at_its_ends():
    assert gain(float("inf"), 32, 256) == 8.0
    for wrong in ((-1, 32, 64), (float("nan"), 32, 64), (10, 0, 64), (10, 32, float("inf"))):
        with pytest.raises(ConfigError):
            gain(*wrong)


@pytest.mark.parametrize(("degrees", "value"), [(3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (1e9, 1.95996)])
def test_quantiles_of_t(degrees, value):
    assert t_quantile(0.975, degrees) == pytest.approx(value, rel=0.01)
