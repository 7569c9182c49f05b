"""Steps and samples to a target against the batch: the hyperbola, predicted from one run (pure); fitted to several: `fit_hyperbola`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from hvd_trainer.errors import ConfigError


@dataclass(frozen=True)
class Hyperbola:
    """Steps to a target with the best rate at each batch: `steps(B) = Smin (1 + Bcrit / B)`.

    Args:
        smallest_steps: Smin, what no batch gets below, > 0.
        critical_batch: Bcrit in samples, >= 0: there it takes twice the smallest steps, and twice the fewest samples.

    Example:
        >>> curve = Hyperbola(400.0, 200.0)
        >>> curve.steps(8), curve.samples(8), curve.steps(200), curve.smallest_samples
        (10400.0, 83200.0, 800.0, 80000.0)

    Source: McCandlish et al. 2018, arXiv 1812.06162, equation 2.11.
    """

    smallest_steps: float
    critical_batch: float

    @property
    def smallest_samples(self) -> float:
        """Emin: what no batch gets below."""
        return self.smallest_steps * self.critical_batch

    def steps(self, batch: float) -> float:
        """Steps to the target.

        Args:
            batch: samples a step, > 0.
        """
        return self.smallest_steps * (1.0 + self.critical_batch / batch)

    def samples(self, batch: float) -> float:
        """Samples to the target: `Emin (1 + B / Bcrit)`."""
        return self.smallest_steps * (batch + self.critical_batch)

    def through(self, batch: float, steps: float) -> Hyperbola:
        """The curve of the same critical batch that takes so many steps at a batch.

        Example:
            >>> Hyperbola(1.0, 200.0).through(200, 800)
            Hyperbola(smallest_steps=400.0, critical_batch=200.0)
        """
        return Hyperbola(steps / (1.0 + self.critical_batch / batch), self.critical_batch)


@dataclass(frozen=True)
class PredictedCurve:
    """The whole curve from a run at one batch.

    Args:
        curve: through that run.
        batch, steps_there: of the run.
        low, high: 95 % interval of the noise scale that it was made from; None: it had none.
    """

    curve: Hyperbola
    batch: float
    steps_there: float
    low: Optional[float] = None
    high: Optional[float] = None

    @property
    def critical_batch(self) -> float:
        """In samples."""
        return self.curve.critical_batch

    def steps(self, batch: float) -> float:
        """See `Hyperbola.steps`."""
        return self.curve.steps(batch)

    def samples(self, batch: float) -> float:
        """See `Hyperbola.samples`."""
        return self.curve.samples(batch)

    def interval(self, batch: float) -> Optional[tuple[float, float]]:
        """95 % of the steps at a batch, from the interval of the noise scale alone; None where it has none."""
        if self.low is None or self.high is None:
            return None
        ends = [Hyperbola(1.0, critical).through(self.batch, self.steps_there).steps(batch) for critical in (self.low, self.high)]
        return min(ends), max(ends)


def from_noise(batch: float, steps: float, noise_scale: float, low: Optional[float] = None, high: Optional[float] = None) -> PredictedCurve:
    """The whole curve from a run at one batch and the gradient noise scale: no other run is needed.

    Args:
        batch: samples a step of the run.
        steps: to the target, with a good rate.
        noise_scale: in samples, clock-weighted over the run (`NoiseScale.average.mean`), which is near the critical batch.
        low, high: its 95 % interval.

    Raises:
        ConfigError: a number that is not above 0 (the noise scale: below 0).

    Example:
        >>> curve = from_noise(200, 800, 200.0, low=100.0, high=300.0)
        >>> curve.steps(100), [round(steps) for steps in curve.interval(100)]
        (1200.0, [1067, 1280])
    """
    if not (batch > 0 and steps > 0 and noise_scale >= 0 and math.isfinite(noise_scale)):
        raise ConfigError(f"batch={batch}, steps={steps}, noise_scale={noise_scale}", "a batch and steps above 0, a noise scale of at least 0")
    return PredictedCurve(Hyperbola(1.0, noise_scale).through(batch, steps), batch, steps, low, high)


def from_noise_curve(
    batch: float, curve: Sequence[tuple[float, Optional[float]]], steps: Optional[float] = None,
    low: Optional[float] = None, high: Optional[float] = None,
) -> PredictedCurve:  # fmt: skip
    """The whole curve from a run at one batch along which the noise scale was measured.

    A step at batch B is worth p = 1 / (1 + Bn / B) of a step without noise, with the Bn of its time. So the run's
    `Smin = sum of p ds`, and the noise scale that counts is weighted by the same clock: `Bcrit = sum of p Bn ds / Smin`. By
    construction the curve goes through the run. Between the points p is linear, before the first and after the last constant.

    Args:
        batch: samples a step of the run.
        curve: (step, noise scale in samples) in the order of the steps; a noise scale of None or NaN (undetermined) is left out.
        steps: to the target; None: the last step of the curve.
        low, high: 95 % interval of the noise scale over the run.

    Raises:
        ConfigError: no determined noise scale in it.

    Example:
        >>> found = from_noise_curve(100, [(50, 100.0), (100, 100.0)])
        >>> found.curve
        Hyperbola(smallest_steps=50.0, critical_batch=100.0)
        >>> round(from_noise_curve(100, [(1, 50.0), (100, 250.0)]).critical_batch)     # early steps are worth more
        109
    """
    known = [(float(step), float(noise)) for step, noise in curve if noise is not None and math.isfinite(noise) and noise >= 0]
    last = steps if steps is not None else float(curve[-1][0]) if curve else 0.0
    known = [(step, noise) for step, noise in known if step <= last]
    if not known or not last > 0:
        raise ConfigError(f"{len(curve)} points of a noise scale, none of them determined", "at least one", "a longer run, or more ranks or micro-batches")
    at = np.array([0.0, *(step for step, _ in known), last])
    worth = np.array([1.0 / (1.0 + noise / batch) for _, noise in known])
    worth = np.concatenate([worth[:1], worth, worth[-1:]])
    smallest = float(np.sum((worth[1:] + worth[:-1]) / 2 * np.diff(at)))
    # Bn p = B (1 - p): the clock-weighted sum is B times the steps that the noise cost.
    return PredictedCurve(Hyperbola(smallest, batch * (last / smallest - 1.0)), batch, last, low, high)
