"""AdaScale: the rate follows the gain of each step, and the schedule follows the sum of the gains."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Optional, Protocol

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.gradient_norms import GradientNorms
from hvd_trainer.optim.noise_average import RunningAverage
from hvd_trainer.optim.rates import scale_groups
from hvd_trainer.optim.schedules import Timeline


def moments(local_sq: float, mean_sq: float, num_parts: int, scale: float) -> tuple[float, float]:
    """sigma^2 (variance of the gradient at the scale-1 batch) and mu^2 (squared norm of its mean), unbiased.

        sigma^2 = (A - |g|^2) S / (R - 1)               A: weighted mean of the R parts' |g_i|^2; for R = S it is
        mu^2    = |g|^2 - sigma^2 / S                   (sum |g_i|^2 - S |g|^2) / (S - 1)

    Args:
        local_sq, mean_sq, num_parts: as in `GradientNorms`, summed over groups.
        scale: S, global batch over reference batch; need not be the number of parts.

    Example:
        >>> moments(5.625, 4.25, num_parts=4, scale=4)
        (1.8333333333333333, 3.7916666666666665)

    Source: Johnson et al. 2020, arXiv 2007.05105, equation 6.
    """
    sigma2 = (local_sq - mean_sq) * scale / (num_parts - 1)
    return sigma2, mean_sq - sigma2 / scale


def gain_ratio(sigma2: float, mu2: float, scale: float) -> float:
    """r = (sigma^2 + mu^2) / (sigma^2 / S + mu^2), between 1 and S; averages below 0 count as 0 (single steps must not).

    Example:
        >>> [gain_ratio(sigma2, mu2, 8) for sigma2, mu2 in ((0, 1), (1, 1), (1, 0), (1, -0.1))]
        [1.0, 1.7777777777777777, 8.0, 8.0]

    Source: Johnson et al. 2020, arXiv 2007.05105, equation 5.
    """
    sigma2, mu2 = max(0.0, sigma2), max(0.0, mu2)
    below = sigma2 / scale + mu2
    return (sigma2 + mu2) / below if below else 1.0


class Rescaled(Protocol):
    """What AdaScale changes: a DistributedOptimizer."""

    lr_scale: float
    param_groups: list[dict[str, Any]]


class AdaScale:
    """A scaling rule whose factor is measured: `lr = r lr(schedule at floor(tau))`, `tau += r`, r from each step's gradients.

    r is how many steps at the reference batch the step is worth, so `tau` counts steps of the reference run: schedules are
    written for that run, and training ends where tau reaches its length. Early on r is near 1, which is a warm-up of its own.

    Valid for SGD with and without momentum; for Adam-like optimizers there is no theory (`adam_like` warns). The step's
    gradients must come in at least two parts, ranks or micro-batches. Averages are over about 1000 / S steps.

    Attributes:
        gain: r of the last step.
        tau: steps of the reference run done.
        scale: S, global over reference batch; known when the optimizer is wrapped.

    Source: Johnson et al. 2020, arXiv 2007.05105, algorithm 1 and appendix B.3. mu^2 is clipped at 0 after averaging, as
    in AdaptDL: clipped in each step it is too large, and the gain too low, where noise is high.
    """

    name = "adascale"

    def __init__(self) -> None:
        self.gain, self.tau, self.scale = 1.0, 0.0, 1.0
        self._average: Optional[RunningAverage] = None
        self._full_weight = 0.0  # of a whole global batch
        self._optimizer: Optional[Rescaled] = None

    def factor(self, global_batch: float, reference_batch: float) -> float:
        """The gain so far (1 at the start): what the rates of new param groups are multiplied by."""
        self.scale = global_batch / reference_batch
        if self._average is None:
            self._average = RunningAverage(max(1 - self.scale / 1000, 0.0), plain_first=True)
        return self.gain

    def outside_range(self, global_batch: float, reference_batch: float, adam_like: bool) -> str:
        if adam_like:
            return "AdaScale with an Adam-like optimizer: its theory is SGD's, whose steps grow with the gradient; ht.NoiseRule(kind='adam') is meant for it"
        if global_batch < reference_batch:
            return f"AdaScale for a batch of {global_batch:g}, below the reference {reference_batch:g}: the paper has batches above it only"
        return ""

    def attach(self, optimizer: Rescaled) -> None:
        """The optimizer whose rates follow from now on."""
        self._optimizer = optimizer

    def wants_norms(self, step: int) -> bool:
        return True

    def observe(self, norms: GradientNorms) -> None:
        """One step's norms, before its update: sets the rates of this very step, then moves the clock on.

        Raises:
            ConfigError: the gradients come in one part, and none came in more before.
        """
        if norms.num_parts < 2 and not self._average.count:
            raise ConfigError(
                "AdaScale with one gradient a step: there is nothing to measure its noise by",
                "at least two ranks, or micro-batches",
                "start more ranks, or BatchPlan(micro_batch=...)",
            )
        if not norms.is_finite:  # float16 overflowed: the step is skipped
            return
        if norms.num_parts >= 2:
            # Averaged per unit of weight, so that a smaller last batch counts, and gains, as what it is.
            noise, mu2 = moments(math.fsum(norms.local_sq), math.fsum(norms.mean_sq), norms.num_parts, norms.weight)
            self._average.add([noise, mu2])
            self._full_weight = max(self._full_weight, norms.weight)
            noise, mu2 = self._average.mean
            reference_weight = self._full_weight / self.scale
            self.gain = gain_ratio(noise / reference_weight, mu2, norms.weight / reference_weight)
        if self._optimizer is not None:
            self._optimizer.lr_scale = self.gain
            scale_groups(self._optimizer.param_groups, self.gain)
        self.tau += self.gain

    def schedule_at(self, step: int, timeline: Timeline) -> tuple[int, Timeline]:
        """Where a schedule stands: the step and the timeline of the reference run."""
        of_reference = dataclasses.replace(
            timeline, steps_per_epoch=timeline.steps_per_epoch * self.scale, total_steps=timeline.total_steps * self.scale
        )
        return math.floor(self.tau), of_reference

    def is_done(self, total_steps: float) -> bool:
        """Whether the reference run's length, S x total_steps of its own steps, has been reached."""
        return self.tau >= self.scale * total_steps

    def state_dict(self) -> dict[str, Any]:
        """Reduced, so the same on all ranks."""
        average = None if self._average is None else self._average.state_dict()
        return {"gain": self.gain, "tau": self.tau, "full_weight": self._full_weight, "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gain, self.tau, self._full_weight = state["gain"], state["tau"], state["full_weight"]
        if state["average"] is not None and self._average is not None:
            self._average.load_state_dict(state["average"])
