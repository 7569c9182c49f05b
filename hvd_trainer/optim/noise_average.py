"""Noise statistics over a run: a moving average for now, windows for the whole, both with intervals, in a bounded state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.gradient_norms import GradientNorms
from hvd_trainer.optim.noise import NoiseEstimate, estimate_from, step_estimates, with_interval

MAX_WINDOWS = 64


class RunningAverage:
    """A moving average of several numbers without the bias towards its start.

    `mean += alpha (x - mean)` with `alpha = (1 - decay) / (1 - decay^t)`: an exponential average divided by the sum of its
    weights. With `plain_first`, `alpha = max(1 / t, 1 - decay)`: the plain mean until there are enough.

    Args:
        decay: 0 <= decay < 1.
        plain_first: AdaScale's way.

    Example:
        >>> average = RunningAverage(decay=0.9)
        >>> for value in (1.0, 2.0):
        ...     average.add([value])
        >>> round(average.mean[0], 4)                       # (0.09 + 0.2) / 0.19
        1.5263

    Source: Kingma & Ba 2015, arXiv 1412.6980, section 3; Johnson et al. 2020, arXiv 2007.05105, appendix B.3.
    """

    def __init__(self, decay: float, *, plain_first: bool = False) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"decay={decay!r}", "0 <= decay < 1", "decay=0.99 looks back over about 100 steps")
        self._decay, self._plain_first = decay, plain_first
        self.mean: list[float] = []
        self.count = 0
        self.squared_weights = 0.0  # sum of the squares of the weights, which sum to 1

    def add(self, values: Sequence[float]) -> None:
        """One observation of all numbers, as many as ever."""
        self.count += 1
        if self._plain_first:
            alpha = max(1 / self.count, 1 - self._decay)
        else:
            alpha = (1 - self._decay) / (1 - self._decay**self.count)
        self.mean = [m + alpha * (x - m) for m, x in zip(self.mean or values, values)]
        self.squared_weights = alpha**2 + (1 - alpha) ** 2 * self.squared_weights

    @property
    def effective_count(self) -> float:
        """How many equally weighted observations the mean is worth."""
        return 1 / self.squared_weights if self.squared_weights else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "count": self.count, "squared_weights": self.squared_weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.count, self.squared_weights = list(state["mean"]), state["count"], state["squared_weights"]


@dataclass
class Window:
    """Sums over consecutive steps.

    Args:
        first_step: number of the first of them.
        num_steps: how many were counted.
        samples: of their batches.
        signal, noise: sums for each param group and, last, for all together.
    """

    first_step: int
    num_steps: int
    samples: float
    signal: list[float]
    noise: list[float]

    def joined(self, later: Window) -> Window:
        """Both as one."""
        signal = [a + b for a, b in zip(self.signal, later.signal)]
        noise = [a + b for a, b in zip(self.noise, later.noise)]
        return Window(self.first_step, self.num_steps + later.num_steps, self.samples + later.samples, signal, noise)


class NoiseAverage:
    """Collects steps; gives the noise scale now (`current`) and over the run (`mean`).

    Args:
        decay: of the moving average, a step.
        window: steps in a window, >= 2; doubled, and windows joined in pairs, whenever there are more than 64.
        num_samples: see `step_estimates`.
    """

    def __init__(self, decay: float = 0.99, window: int = 16, num_samples: Optional[int] = None) -> None:
        if not window >= 2:
            raise ConfigError(f"window={window!r}", "at least 2 steps", "window=16")
        self._decay, self._window, self.num_samples = decay, window, num_samples
        self._clear()

    def _clear(self) -> None:
        self.num_groups = 0
        self.num_steps = 0  # that were counted
        self.windows: list[Window] = []
        self._open: Optional[Window] = None
        self._average = RunningAverage(self._decay)

    def add(self, norms: GradientNorms, samples: float, step: int) -> bool:
        """One step. False where it tells nothing: an overflow, or one part alone.

        Args:
            norms: of the step.
            samples: of its global batch: the unit of the noise scale, whatever the loss is weighted by.
            step: its number.
        """
        if norms.num_parts < 2 or not norms.is_finite:
            return False
        if len(norms.mean_sq) != self.num_groups:  # a param group was added: what was before is another quantity
            self._clear()
            self.num_groups = len(norms.mean_sq)
        squares = [*zip(norms.local_sq, norms.mean_sq), (math.fsum(norms.local_sq), math.fsum(norms.mean_sq))]
        found = [step_estimates(local, mean, samples, norms.num_parts, self.num_samples) for local, mean in squares]
        self.num_steps += 1
        self._average.add([value for g, s in found for value in (g, s, g * g, g * s, s * s)])
        here = Window(step, 1, samples, [g for g, _ in found], [s for _, s in found])
        self._open = here if self._open is None else self._open.joined(here)
        if self._open.num_steps >= self._window:
            self.windows.append(self._open)
            self._open = None
            if len(self.windows) > MAX_WINDOWS:
                self._join_pairs()
        return True

    def _join_pairs(self) -> None:
        if len(self.windows) % 2:
            self._open = self.windows.pop()
        self.windows = [first.joined(second) for first, second in zip(self.windows[::2], self.windows[1::2])]
        self._window *= 2

    def current(self, group: Optional[int] = None) -> NoiseEstimate:
        """The moving averages' ratio, with the interval that their own scatter gives.

        Args:
            group: number of a param group; None: all together.
        """
        if not self.num_steps:
            return NoiseEstimate(math.nan, math.nan, num_steps=0, reason=NOTHING)
        begin = 5 * (self.num_groups if group is None else group)
        g, s, gg, gs, ss = self._average.mean[begin : begin + 5]
        num = self._average.effective_count
        if num <= 1:
            return NoiseEstimate(g, s, reason="one step has no interval")
        scale = 1 / (num - 1)  # weights of an effective number of independent steps
        variances = (ss - s * s) * scale, (gs - g * s) * scale, (gg - g * g) * scale
        return with_interval(g, s, *variances, num_averages=num, num_steps=num)

    def mean(self, group: Optional[int] = None) -> NoiseEstimate:
        """The clock-weighted mean over the run: what predicts the critical batch.

        A step at batch B advances the run by p = 1 / (1 + Bn / B) of a step without noise, so a window's noise scale counts
        with its p: sum p Bn / sum p, which is (sum of S / (G + S / B)) / (sum of G / (G + S / B)) over windows of G = |G|^2
        and S = tr(Sigma): no window is divided by its own |G|^2. The interval is Fieller's, from the scatter of the windows
        (drift included).

        Args:
            group: number of a param group; None: all together.

        Source: integrating McCandlish et al. 2018, arXiv 1812.06162, appendix D, over a run.
        """
        if not self.num_steps:
            return NoiseEstimate(math.nan, math.nan, num_steps=0, reason=NOTHING)
        number = self.num_groups if group is None else group
        windows = [*self.windows]
        if self._open is not None and self._open.num_steps * 2 >= self._window:
            windows.append(self._open)
        signals, noises, num_steps = [], [], 0
        for window in windows:
            batch = window.samples / window.num_steps
            square = (window.signal[number] + window.noise[number] / batch) / window.num_steps  # of the averaged gradient
            if square > 0:
                signals.append(window.signal[number] / square)
                noises.append(window.noise[number] / square)
                num_steps += window.num_steps
        if not signals:
            return NoiseEstimate(math.nan, math.nan, num_steps=0, reason=f"{self.num_steps} steps are less than a window of {self._window}")
        found = estimate_from(signals, noises)
        reason = found.reason.replace(f"over {len(signals)} steps", f"over {len(signals)} windows")
        if len(signals) == 1:
            reason = f"one window of {num_steps} steps has no interval"
        return NoiseEstimate(found.signal, found.noise, found.low, found.high, num_steps, reason)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers; the same on all ranks."""
        return {
            "average": self._average.state_dict(),
            "window": self._window,
            "windows": [dict(vars(window)) for window in self.windows],
            "open": None if self._open is None else dict(vars(self._open)),
            "num_groups": self.num_groups,
            "num_steps": self.num_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average.load_state_dict(state["average"])
        self._window, self.num_groups, self.num_steps = state["window"], state["num_groups"], state["num_steps"]
        self.windows = [Window(**fields) for fields in state["windows"]]
        self._open = None if state["open"] is None else Window(**state["open"])


NOTHING = "no step with two or more gradients was seen (it takes several ranks or micro-batches)"
