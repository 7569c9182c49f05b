"""The gradient noise scale: how much of a batch's gradient is signal, from local against averaged gradients. Pure maths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Optional, Union

from hvd_trainer.errors import ConfigError

CONFIDENCE = 0.95
MIN_AVERAGES = 4  # independent numbers behind an interval


@dataclass(frozen=True)
class NoiseEstimate:
    """|G|^2, tr(Sigma) and their ratio, the noise scale in samples.

    Args:
        signal: |G|^2, the squared norm of the true gradient; unbiased, so it may come out negative.
        noise: tr(Sigma), the variance of one sample's gradient, summed over its components.
        low, high: 95 % interval of the ratio; NaN where undetermined.
        num_steps: how many steps are behind it (of an average with a decay: how many count).
        reason: why it is undetermined, "" where it is not.
    """

    signal: float
    noise: float
    low: float = math.nan
    high: float = math.nan
    num_steps: float = 1
    reason: str = ""

    @property
    def ratio(self) -> float:
        """noise / signal as it comes out, also where it means nothing (negative, or far too large)."""
        return self.noise / self.signal if self.signal else math.nan

    @property
    def value(self) -> Optional[float]:
        """The noise scale in samples; None where it is undetermined."""
        return None if self.reason else max(0.0, self.ratio)

    def __str__(self) -> str:
        if self.reason:
            return f"undetermined: {self.reason}"
        return f"{self.value:.4g} samples (95 %: {self.low:.3g} to {self.high:.3g})"


def step_estimates(local_sq: float, mean_sq: float, batch: float, num_parts: int, num_samples: Optional[int] = None) -> tuple[float, float]:
    """Unbiased |G|^2 and tr(Sigma) from one step whose batch was computed in parts.

        tr(Sigma) = (A - |g|^2) B / (R - 1)             A = sum of b_i / B |g_i|^2 over the R parts, uneven or not
        |G|^2     = (R |g|^2 - A) / (R - 1)

    Parts that share a finite set without overlapping make |G|^2 too small by tr(Sigma) / n; `num_samples` puts it back,
    and the result is that of the set's own gradient.

    Args:
        local_sq: A.
        mean_sq: |g|^2 of the averaged gradient, before clipping.
        batch: B, samples of all parts.
        num_parts: R >= 2.
        num_samples: n, size of the set that the samples are drawn from without replacement; None: as good as infinite.

    Returns:
        |G|^2 and tr(Sigma). Either may be negative: only averages of many steps mean something, and their ratio is taken last.

    Raises:
        ConfigError: there is only one part.

    Example:
        >>> step_estimates(local_sq=5.625, mean_sq=4.25, batch=32, num_parts=4)
        (3.7916666666666665, 14.666666666666666)

    Source: McCandlish et al. 2018, arXiv 1812.06162, appendix A.1; for uneven parts derived from the same two expectations,
    E A = |G|^2 + R tr(Sigma) / B and E |g|^2 = |G|^2 + tr(Sigma) / B.
    """
    if num_parts < 2:
        raise ConfigError(
            f"{num_parts} gradient a step has nothing to be compared with", "at least 2: ranks or micro-batches", "more ranks, or BatchPlan(micro_batch=...)"
        )
    noise = (local_sq - mean_sq) * batch / (num_parts - 1)
    signal = (num_parts * mean_sq - local_sq) / (num_parts - 1)
    return signal + (noise / num_samples if num_samples else 0.0), noise


def noise_scale(
    local_sq: Sequence,
    mean_sq: Union[float, Sequence[float]],
    local_batch: Union[int, Sequence],
    *,
    num_samples: Optional[int] = None,
) -> NoiseEstimate:
    """The gradient noise scale tr(Sigma) / |G|^2, in samples, from squared norms of local and averaged gradients.

    Over several steps |G|^2 and tr(Sigma) are averaged separately and divided once: a mean of ratios, or |G|^2 clipped at
    0 in each step, is off by factors where the signal is low. The interval is Fieller's, from the steps' covariance; where
    the mean of |G|^2 is not above two standard errors (the quantile of t, to be exact), the scale is undetermined.

    Args:
        local_sq: |g_i|^2 of each part (rank or micro-batch); for several steps one such list a step.
        mean_sq: |averaged gradient|^2; for several steps one a step.
        local_batch: samples of a part, or one number a part, or one such list a step.
        num_samples: size of a finite data set that parts share without overlapping; see `step_estimates`.

    Returns:
        A NoiseEstimate. From one step it has no interval, hence is undetermined; `ratio` is there all the same.

    Raises:
        ConfigError: a step has fewer than two parts, or lengths do not match.

    Example:
        >>> round(noise_scale([6.0, 2.5, 5.25, 8.75], 4.25, local_batch=8).ratio, 4)
        3.8681
        >>> print(noise_scale([[1.0, 0.0]] * 8, [0.9, 0.1] * 4, local_batch=8))
        undetermined: |G|^2 is 0.5 +- 0.302 over 8 steps, not above 2.4 standard errors

    Source: McCandlish et al. 2018, arXiv 1812.06162, section 2.2 and appendix A.1; Fieller 1954.
    """
    several = isinstance(mean_sq, Sequence)
    steps = list(local_sq) if several else [local_sq]
    means = list(mean_sq) if several else [mean_sq]
    nested = several and isinstance(local_batch, Sequence) and len(local_batch) and isinstance(local_batch[0], Sequence)
    batches = list(local_batch) if nested else [local_batch] * len(steps)
    if not len(steps) == len(means) == len(batches) or not steps:
        raise ConfigError(f"noise_scale with {len(steps)}, {len(means)} and {len(batches)} steps", "the same number, >= 1", "one entry a step")
    found = []
    for squares, mean, sizes in zip(steps, means, batches):
        sizes = list(sizes) if isinstance(sizes, Sequence) else [sizes] * len(squares)
        if len(sizes) != len(squares):
            raise ConfigError(f"{len(squares)} squared norms and {len(sizes)} batch sizes in a step", "one size a part", "local_batch=8 where all are equal")
        batch = sum(sizes)
        local = sum(size * float(square) for size, square in zip(sizes, squares)) / batch
        found.append(step_estimates(local, float(mean), batch, len(squares), num_samples))
    return estimate_from([signal for signal, _ in found], [noise for _, noise in found])


def estimate_from(signals: Sequence[float], noises: Sequence[float]) -> NoiseEstimate:
    """The ratio of means and its interval, from unbiased per-step values that are independent."""
    num = len(signals)
    signal, noise = math.fsum(signals) / num, math.fsum(noises) / num
    if num == 1:
        return NoiseEstimate(signal, noise, reason="one step has no interval")

    def cov(xs: Sequence[float], ys: Sequence[float], x: float, y: float) -> float:
        return math.fsum((a - x) * (b - y) for a, b in zip(xs, ys)) / (num * (num - 1))

    variances = cov(noises, noises, noise, noise), cov(noises, signals, noise, signal), cov(signals, signals, signal, signal)
    return with_interval(signal, noise, *variances, num_averages=num, num_steps=num)


def with_interval(
    signal: float, noise: float, var_noise: float, covariance: float, var_signal: float, *, num_averages: float, num_steps: float
) -> NoiseEstimate:
    """A NoiseEstimate with Fieller's interval for noise / signal.

    All ratios r for which noise - r signal is not further from 0 than t standard errors: exact for two correlated normal
    means, lopsided as it should be, and unbounded (here: undetermined) where signal could be 0.

    Args:
        signal, noise: means.
        var_noise, covariance, var_signal: of these means (not of single steps).
        num_averages: independent numbers behind the variances; t has one degree of freedom less.
        num_steps: for the report.
    """
    if num_averages < MIN_AVERAGES:
        return NoiseEstimate(signal, noise, num_steps=num_steps, reason=f"{num_averages:.3g} independent averages are too few ({MIN_AVERAGES} are needed)")
    quantile = t_quantile(0.5 + CONFIDENCE / 2, num_averages - 1)
    error = math.sqrt(max(0.0, var_signal))
    if not signal > quantile * error:
        reason = f"|G|^2 is {signal:.3g} +- {error:.3g} over {num_steps:.0f} steps, not above {quantile:.1f} standard errors"
        return NoiseEstimate(signal, noise, num_steps=num_steps, reason=reason)
    square = quantile * quantile
    a, b, c = signal**2 - square * var_signal, noise * signal - square * covariance, noise**2 - square * var_noise
    root = math.sqrt(max(0.0, b * b - a * c))
    return NoiseEstimate(signal, noise, max(0.0, (b - root) / a), max(0.0, (b + root) / a), num_steps)


def t_quantile(probability: float, degrees: float) -> float:
    """Of Student's t, to 1 % from 3 degrees of freedom on.

    Example:
        >>> [round(t_quantile(0.975, degrees), 2) for degrees in (3, 5, 10, 100)]       # tables: 3.18, 2.57, 2.23, 1.98
        [3.16, 2.57, 2.23, 1.98]

    Source: Abramowitz & Stegun, 26.7.5.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, 1))


def gain(noise_scale: float, reference_batch: float, global_batch: float) -> float:
    """How many steps at the reference batch one step at the global batch is worth.

        gain = (1 + Bn / Bref) / (1 + Bn / B)

    Between 1 and B / Bref for B >= Bref. Steps to a target fall by it, SGD's rate rises by it, Adam's by its square root.

    Args:
        noise_scale: Bn in samples, >= 0; infinite: all noise.
        reference_batch, global_batch: samples, > 0.

    Raises:
        ConfigError: a value is negative, a batch is 0, or one of them is not a number.

    Example:
        >>> [round(gain(100, 32, batch), 3) for batch in (32, 64, 256, 10**9)]
        [1.0, 1.61, 2.966, 4.125]

    Source: McCandlish et al. 2018, arXiv 1812.06162, equation 2.11; Johnson et al. 2020, arXiv 2007.05105, equation 5.
    """
    if not (noise_scale >= 0 and 0 < reference_batch < math.inf and 0 < global_batch < math.inf):
        given = f"gain(noise_scale={noise_scale}, reference_batch={reference_batch}, global_batch={global_batch})"
        raise ConfigError(given, "a noise scale >= 0 and batches > 0, in samples", "pass a noise scale that is determined")
    if math.isinf(noise_scale):
        return global_batch / reference_batch
    return (1 + noise_scale / reference_batch) / (1 + noise_scale / global_batch)
