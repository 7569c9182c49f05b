"""The hyperbola of steps against the batch through measured runs, with what it leaves open (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Optional

import numpy as np

from hvd_trainer.cost.steps_to_target import Hyperbola
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.noise import t_quantile

CONFIDENCE = 0.95
# Steps to a target are known as finely as evaluations lie apart: 5 % give a standard deviation of 5 % / sqrt(12). A fit that
# is better than that is luck, and its interval must not say otherwise.
LEAST_SCATTER = 0.015
# Critical batches that are looked at: this far below the smallest and above the largest batch the curve is straight.
BEYOND = 1e3
GRID = 400


@dataclass(frozen=True)
class HyperbolaFit:
    """A hyperbola through measured steps.

    Args:
        curve: the best fit.
        low, high: 95 % interval of the critical batch; 0 or infinite at a side that the data leave open.
        factors: measured / fitted for each point.
        scatter: standard deviation of log(measured / fitted), at least the grain of evaluations.
        reason: why the critical batch is undetermined, "" where it is not.
    """

    curve: Hyperbola
    low: float
    high: float
    factors: tuple[float, ...]
    scatter: float
    reason: str = ""
    _data: _Data = field(repr=False, compare=False, default=None)  # type: ignore[assignment]

    @property
    def critical_batch(self) -> float:
        """In samples: the best fit, meaningless where `reason` says so."""
        return self.curve.critical_batch

    @property
    def worst(self) -> float:
        """The largest factor by which a point lies off the curve, >= 1."""
        return max(max(factor, 1 / factor) for factor in self.factors)

    def steps(self, batch: float) -> float:
        """See `Hyperbola.steps`."""
        return self.curve.steps(batch)

    def samples(self, batch: float) -> float:
        """See `Hyperbola.samples`."""
        return self.curve.samples(batch)

    def interval(self, batch: float) -> Optional[tuple[float, float]]:
        """95 % of the steps that the curve (not one more run) takes at a batch: all curves that fit about as well.

        Returns:
            (low, high), or None: two points fit any two numbers.
        """
        data, limit = self._data, self._data.limit(self.scatter)
        if limit is None:
            return None
        criticals, costs, log_smallest = data.profile
        # For each critical batch the smallest steps have a room of their own; together: the profile of steps at this batch.
        inside = costs <= limit
        room = np.sqrt(np.maximum(0.0, limit - costs[inside]) / data.weights.sum())
        logs = log_smallest[inside] + np.log1p(criticals[inside] / batch)
        logs, room = (logs, room) if len(logs) else (np.array([math.log(self.steps(batch))]), np.zeros(1))
        return float(np.exp(np.min(logs - room))), float(np.exp(np.max(logs + room)))

    def __str__(self) -> str:
        fit = f"smallest steps {self.curve.smallest_steps:.4g}, worst point {self.worst:.2f} x"
        if self.reason:
            return f"critical batch undetermined ({self.reason}); {fit}"
        return f"critical batch {self.critical_batch:.4g} samples (95 %: {self.low:.3g} to {self.high:.3g}); {fit}"


@dataclass(frozen=True)
class _Data:
    """What was measured: the smallest steps have a closed form for each critical batch, so that one number is searched."""

    batches: np.ndarray
    log_steps: np.ndarray
    weights: np.ndarray

    def log_smallest(self, critical: float) -> float:
        return float(self.weights @ (self.log_steps - self._shape(critical)) / self.weights.sum())

    def cost(self, critical: float) -> float:
        rest = self.log_steps - self._shape(critical)
        return float(self.weights @ (rest - self.weights @ rest / self.weights.sum()) ** 2)

    def slope(self, critical: float) -> float:
        """Half the derivative of the cost by log(critical), with its sign turned."""
        rest = self.log_steps - self._shape(critical)
        rest = rest - self.weights @ rest / self.weights.sum()
        return float(self.weights @ (rest * (critical / (self.batches + critical))))

    def _shape(self, critical: float) -> np.ndarray:
        if math.isinf(critical):  # steps x batch is constant
            return -np.log(self.batches)
        return np.log1p(critical / self.batches)

    @cached_property
    def profile(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Critical batches over the whole range; the cost and log(smallest steps) of each one's best curve."""
        low, high = self.batches.min() / BEYOND, self.batches.max() * BEYOND
        criticals = np.exp(np.linspace(math.log(low), math.log(high), GRID))
        rest = self.log_steps - np.log1p(criticals[:, None] / self.batches)
        log_smallest = rest @ self.weights / self.weights.sum()
        return criticals, (rest - log_smallest[:, None]) ** 2 @ self.weights, log_smallest

    def limit(self, scatter: float) -> Optional[float]:
        """The cost of curves that fit as well as 95 % of the true ones would; None: too few points to say."""
        freedom = len(self.batches) - 2
        if freedom < 1:
            return None
        return float(self.profile[1].min()) + (scatter * _t_quantile(0.5 + CONFIDENCE / 2, freedom)) ** 2


def fit_hyperbola(batches: Sequence[float], steps: Sequence[float], weights: Optional[Sequence[float]] = None) -> HyperbolaFit:
    """The hyperbola through measured steps to a target: least squares of log(steps).

    The interval of the critical batch is the profile of the sum of squares: all critical batches whose best curve is not
    worse than the best of all by more than `scatter^2 t^2`, with t of n - 2 degrees of freedom. Batches that all lie far on
    one side of the critical batch leave one end open, then it is undetermined.

    Args:
        batches: samples a step; several runs (seeds) of one batch are several points.
        steps: to the target at each, > 0.
        weights: how much each point counts, > 0; by default 1.

    Returns:
        A HyperbolaFit.

    Raises:
        ConfigError: fewer than two different batches, or numbers that are not above 0.

    Example:
        >>> found = fit_hyperbola([16, 64, 256, 1024], [2700, 825, 356.25, 239.0625])
        >>> round(found.critical_batch, 6), round(found.curve.smallest_steps, 6), round(found.worst, 6)
        (200.0, 200.0, 1.0)
        >>> str(fit_hyperbola([16, 32, 64], [6400, 3200, 1600])).split(";")[0]
        'critical batch undetermined (all batches are far below it, it is above 141)'
    """
    x, y = np.asarray(batches, dtype=float), np.asarray(steps, dtype=float)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=float)
    if not (len(x) == len(y) == len(w)) or not all(np.all(np.isfinite(v) & (v > 0)) for v in (x, y, w)):
        raise ConfigError(f"batches {list(batches)} with steps {list(steps)}", "as many of both, all finite and above 0", "leave out runs that did not come to the target")
    if len(set(x)) < 2:
        raise ConfigError(f"steps at {len(set(x))} batch", "at least two different batches", "run one at another batch, or predict from the noise scale (from_noise)")
    data = _Data(x, np.log(y), w * len(w) / w.sum())
    critical = _best(data)
    curve = Hyperbola(math.exp(data.log_smallest(critical)), critical)
    freedom = max(1, len(x) - 2)
    scatter = max(LEAST_SCATTER, math.sqrt(data.cost(critical) / freedom))
    factors = tuple(float(steps / curve.steps(batch)) for batch, steps in zip(x, y))
    limit = data.limit(scatter)
    if limit is None:
        return HyperbolaFit(curve, 0.0, math.inf, factors, scatter, "two points fit any critical batch: a third one is needed", data)
    low = 0.0 if data.cost(0.0) <= limit else _edge(data, limit, critical, x.min() / BEYOND)
    high = math.inf if data.cost(math.inf) <= limit else _edge(data, limit, critical, x.max() * BEYOND)
    return HyperbolaFit(curve, low, high, factors, scatter, _why(low, high), data)


def _why(low: float, high: float) -> str:
    if low == 0.0 and math.isinf(high):
        return "the steps scatter too much, or the batches lie too near to each other"
    if low == 0.0:
        return f"all batches are far above it, it is below {high:.3g}"
    return f"all batches are far below it, it is above {low:.3g}" if math.isinf(high) else ""


def _best(data: _Data) -> float:
    grid, costs, _ = data.profile
    index = int(np.argmin(costs))
    if index in (0, len(grid) - 1):
        return float(grid[index])
    # The slope's sign between the neighbours of the best: bisection goes to the last digit, a search for the lowest to half.
    low, high = math.log(grid[index - 1]), math.log(grid[index + 1])
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if data.slope(math.exp(middle)) > 0 else (low, middle)
    return math.exp((low + high) / 2)


def _edge(data: _Data, limit: float, inside: float, outside: float) -> float:
    """Where the cost passes the limit between a critical batch that is within and one that is not."""
    good, bad = math.log(inside), math.log(outside)
    if data.cost(outside) <= limit:  # beyond what is looked at: as good as open, but finite
        return outside
    for _ in range(60):
        middle = (good + bad) / 2
        good, bad = (middle, bad) if data.cost(math.exp(middle)) <= limit else (good, middle)
    return math.exp((good + bad) / 2)


def _t_quantile(probability: float, freedom: int) -> float:
    """Exact for 1 and 2 degrees of freedom, where the expansion is not."""
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    return t_quantile(probability, freedom)


@dataclass(frozen=True)
class Comparison:
    """How far predictions lie from measurements.

    Args:
        worst: the largest factor, >= 1.
        geometric_mean: of the factors, each turned so that it is >= 1.
        factors: predicted / measured for each.
    """

    worst: float
    geometric_mean: float
    factors: tuple[float, ...]

    def __str__(self) -> str:
        return f"worst {self.worst:.2f} x, geometric mean {self.geometric_mean:.2f} x"


def compare(predicted: Sequence[float], measured: Sequence[float]) -> Comparison:
    """Predicted against measured numbers, as factors.

    Args:
        predicted, measured: as many of both, > 0.

    Raises:
        ConfigError: none, or not as many of both.

    Example:
        >>> str(compare([100, 50], [100, 100]))
        'worst 2.00 x, geometric mean 1.41 x'
    """
    if not len(predicted) or len(predicted) != len(measured):
        raise ConfigError(f"{len(predicted)} predictions and {len(measured)} measurements", "as many of both, at least one")
    factors = tuple(p / m for p, m in zip(predicted, measured))
    off = [abs(math.log(factor)) for factor in factors]
    return Comparison(math.exp(max(off)), math.exp(sum(off) / len(off)), factors)
