"""Fits in relative error that a few disturbed measurements cannot bend, with draws that show how far they are certain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_trainer.errors import MissingPartError

PRIOR_WEIGHT = 0.02  # of one standard deviation of the prior, in the unit of the residuals: 2 %
SOFT = 0.1  # residuals well above 10 % count linearly, no longer squared
Predict = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Prior:
    """Where a parameter is looked for when the data say little about it.

    Args:
        centre: the first guess.
        spread: standard deviation.
        low, high: bounds.
    """

    centre: float
    spread: float
    low: float
    high: float


@dataclass(frozen=True)
class Fitted:
    """A fit and its uncertainty.

    Args:
        theta: the parameters.
        draws: parameters refitted to disturbed data, one row each.
        scatter: standard deviation of log(measured / fitted), with the degrees of freedom taken off.
        cost: of the best fit; smaller is better, comparable between models of the same data.
    """

    theta: np.ndarray
    draws: np.ndarray
    scatter: float
    cost: float


def fit(
    predict: Predict, measured: Sequence[float], priors: Sequence[Prior], num_draws: int = 60, seed: int = 0,
    weights: Sequence[float] | None = None,
) -> Fitted:  # fmt: skip
    """Parameters that make log(predict / measured) small.

    The uncertainty is by bootstrap of the residuals: each draw multiplies the fitted times with the measured relative
    errors, drawn with replacement, moves the priors' centres within their spread, and fits again. So a parameter that
    the data do not determine varies as much as the prior allows, and the predictions that depend on it too.

    Args:
        predict: seconds for each measurement, from the parameters; > 0.
        measured: seconds, > 0.
        priors: one for each parameter.
        num_draws: refits.
        seed: of the draws: the same data give the same interval.
        weights: how much each measurement counts, > 0; by default 1.

    Returns:
        A Fitted.

    Raises:
        MissingPartError: scipy is not installed.

    Example:
        >>> x = np.array([1.0, 2.0, 4.0, 8.0])
        >>> found = fit(lambda t: t[0] * x, [2.0, 4.0, 8.0, 80.0], [Prior(1.0, 10.0, 0.1, 100.0)], num_draws=2)
        >>> bool(1.9 < found.theta[0] < 2.3)        # the outlier counts little
        True
    """
    observed = np.asarray(measured, dtype=float)
    centres = np.array([prior.centre for prior in priors])
    weight = np.ones(len(observed)) if weights is None else np.asarray(weights, dtype=float)
    theta, cost = _solve(predict, observed, weight, priors, centres, centres, tolerance=1e-9)
    fitted = predict(theta)
    residuals = np.log(observed / fitted)
    count = weight.sum()  # of whole measurements
    inflation = np.sqrt(count / max(1.0, count - len(priors)))
    # By the median of absolute values: one disturbed size must not widen everything.
    scatter = float(1.4826 * _weighted_median(np.abs(residuals), weight) * inflation)
    rng = np.random.default_rng(seed)
    spreads = np.array([prior.spread for prior in priors])
    lows, highs = np.array([p.low for p in priors]), np.array([p.high for p in priors])
    draws = []
    for _ in range(num_draws):
        disturbed = fitted * np.exp(rng.choice(residuals, len(residuals), p=weight / count) * inflation)
        moved = np.clip(centres + spreads * rng.standard_normal(len(centres)), lows, highs)
        draws.append(_solve(predict, disturbed, weight, priors, moved, theta, tolerance=1e-4)[0])
    return Fitted(theta, np.array(draws).reshape(num_draws, len(priors)), scatter, cost)


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values)
    heap = np.cumsum(weight[order])
    half = heap[-1] / 2
    low, high = np.searchsorted(heap, half * (1 - 1e-9)), np.searchsorted(heap, half * (1 + 1e-9))
    return float((values[order[low]] + values[order[min(high, len(values) - 1)]]) / 2)


def _solve(
    predict: Predict, observed: np.ndarray, weight: np.ndarray, priors: Sequence[Prior], centres: np.ndarray, start: np.ndarray,
    tolerance: float,
) -> tuple[np.ndarray, float]:  # fmt: skip
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise MissingPartError("scipy is not installed", "", "pip install scipy (it fits the models of `hvd_trainer.cost`)") from None
    spreads = np.array([prior.spread for prior in priors])
    low = np.array([prior.low for prior in priors])
    high = np.array([prior.high for prior in priors])
    inner = 1e-9 * (high - low)

    def residuals(theta: np.ndarray) -> np.ndarray:
        logs = np.log(predict(theta) / observed)
        # soft_l1 by hand, so that it does not touch the prior's part: sqrt of 2 c^2 (sqrt(1 + (r/c)^2) - 1), with r's sign
        soft = np.sign(logs) * SOFT * np.sqrt(2 * (np.sqrt(1 + (logs / SOFT) ** 2) - 1))
        return np.concatenate([np.sqrt(weight) * soft, PRIOR_WEIGHT * (theta - centres) / spreads])

    inside = np.clip(start, low + inner, high - inner)
    found = least_squares(residuals, inside, bounds=(low, high), x_scale=spreads, ftol=tolerance, xtol=tolerance)
    return found.x, float(found.cost)


@dataclass(frozen=True)
class Estimate:
    """A predicted number with its interval.

    Args:
        value: the best guess.
        low, high: 95 % of the draws lie between them.
    """

    value: float
    low: float
    high: float


def estimate(value: float, draws: Sequence[float], scatter: float, seed: int = 0) -> Estimate:
    """The interval of a prediction: uncertain parameters, and what the model does not explain.

    Args:
        value: from the best parameters.
        draws: the same from each draw.
        scatter: standard deviation of log(measured / fitted).
        seed: of the noise.

    Example:
        >>> estimate(1.0, [0.9, 1.0, 1.1], 0.0)
        Estimate(value=1.0, low=0.9, high=1.1)
    """
    if not len(draws):
        return Estimate(value, value, value)
    rng = np.random.default_rng(seed)
    noise = np.exp(scatter * rng.standard_normal((20, 1))) if scatter else np.ones((1, 1))
    spread = (noise * np.asarray(draws, dtype=float)).ravel()
    low, high = np.quantile(spread, [0.025, 0.975], method="closest_observation") if spread.size < 40 else np.quantile(spread, [0.025, 0.975])
    return Estimate(value, min(value, float(low)), max(value, float(high)))
