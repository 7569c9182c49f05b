"""What Optuna may choose for one number of ranks and one optimizer, and what its parameters mean."""

from __future__ import annotations

import math
from typing import Any, Optional

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from hvd_trainer.tune.start_points import Base, middle_rate
from hvd_trainer.tune.trial import Settings

# The rate is searched within these multiples of the rule's; with a prediction; for an optimizer that nobody tuned.
AROUND, PREDICTED, FAR = (1 / 4, 4.0), (0.35, 2.8), (1 / 16, 16.0)
OCTAVES = 2  # of the batch, to both sides of the predicted one
WARMUP_SHARES = (0.0, 0.02, 0.05, 0.1)  # of the samples to the target


class Space:
    """A search space.

    The rate is a multiple of the rule's for the batch, so that a good multiple at one batch is likely good at another.

    Args:
        ranks, base, optimizer, noise_scale: see `middle_rate`.
        largest: batch.
        warms_up: whether the script's config has a warm-up.
        samples: to the target, roughly.
        predicted_batch: that is best by the prediction; None: there is none.
        highest_rate: of the script's optimizer, from which on training breaks; None: not known.
    """

    def __init__(
        self, ranks: int, base: Base, optimizer: Optional[str], noise_scale: Optional[float], largest: int, warms_up: bool, samples: int,
        predicted_batch: Optional[int] = None, highest_rate: Optional[float] = None,
    ) -> None:  # fmt: skip
        self._ranks, self._base, self._optimizer, self._noise_scale, self._samples = ranks, base, optimizer, noise_scale, samples
        self.name = f"ranks={ranks} optimizer={optimizer or 'script'}"
        self.is_scripts = optimizer in (None, base.optimizer)
        self._highest_rate = highest_rate if self.is_scripts and highest_rate else math.inf
        low, high = FAR if not self.is_scripts else AROUND if predicted_batch is None else PREDICTED
        smallest = max(ranks, base.global_batch // 4, 1)
        if predicted_batch is not None:
            smallest, largest = max(ranks, predicted_batch >> OCTAVES, 1), min(largest, predicted_batch << OCTAVES)
        self.distributions: dict[str, Any] = {
            "global_batch": IntDistribution(min(smallest, largest), largest, log=True),
            "rate_multiple": FloatDistribution(low, high, log=True),
        }
        if warms_up:
            self.distributions["warmup_share"] = CategoricalDistribution(WARMUP_SHARES)

    def settings(self, params: dict[str, Any]) -> Settings:
        """What these parameters are."""
        batch = params["global_batch"]
        rate = params["rate_multiple"] * middle_rate(self._base, batch, self._optimizer, self._noise_scale)
        share = params.get("warmup_share")
        warmup = None if share is None else round(share * self._samples)
        return Settings(self._ranks, batch, min(rate, self._highest_rate), self._optimizer, warmup)

    def params(self, settings: Settings) -> dict[str, Any]:
        """The parameters of a row; its warm-up is the script's, which counts as the middle one."""
        rate = middle_rate(self._base, settings.global_batch, self._optimizer, self._noise_scale)
        params = {"global_batch": settings.global_batch, "rate_multiple": settings.peak_lr / rate, "warmup_share": WARMUP_SHARES[2]}
        return {name: params[name] for name in self.distributions}

    def holds(self, settings: Settings) -> bool:
        """Whether a row is of these ranks and this optimizer."""
        return settings.ranks == self._ranks and self.is_scripts
