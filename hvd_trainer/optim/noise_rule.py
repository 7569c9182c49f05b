"""Learning rates that follow the measured gradient noise scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.noise import gain

KINDS = ("sgd", "adam", "surge")
UPWARD_LIMIT = 2.0  # gain


@dataclass(frozen=True)
class NoiseRule:
    """The rate that the gradient noise scale Bn allows, from one that was tuned at another batch.

        kind="sgd"      gain = (1 + Bn / Bref) / (1 + Bn / B): linear far below Bn, constant far above
        kind="adam"     sqrt(gain): the square root below Bn, constant above
        kind="surge"    f(B) / f(Bref), f(B) = 2 / (sqrt(Bn / B) + sqrt(B / Bn)): rises to B = Bn, then falls

    Valid for the Bn of the same model, data and stage of the training, and downwards from a rate tuned at a large batch.
    Upwards from a small batch it may ask for more than the largest stable rate, which it knows nothing of: the warning
    begins at a gain of 2. Momentum is the same at both batches.

    Args:
        noise_scale: Bn in samples, >= 0, as `ht.NoiseScale` measures it.
        kind: "sgd" (with and without momentum), "adam" (and LAMB), or "surge" (sign-like optimizers with large batches).

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> [round(NoiseRule(200).factor(batch, 64), 3) for batch in (64, 128, 1024, 65536)]
        [1.0, 1.61, 3.451, 4.112]
        >>> round(NoiseRule(200, kind="adam").factor(1024, 64), 3)
        1.858

    Source: McCandlish et al. 2018, arXiv 1812.06162, equation 2.6; "adam": Qiao et al. 2021, arXiv 2008.12260 (AdaptDL);
    "surge": Li et al. 2024, arXiv 2405.14578.
    """

    noise_scale: float
    kind: str = "sgd"
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"NoiseRule(kind={self.kind!r})", ", ".join(KINDS), 'kind="adam" for Adam, AdamW and LAMB')
        least_is_zero = self.kind != "surge"
        if not (self.noise_scale >= 0 if least_is_zero else 0 < self.noise_scale < math.inf):
            raise ConfigError(f"NoiseRule({self.noise_scale!r})", "a noise scale in samples, not negative", "measure it with ht.NoiseScale()")
        # What a checkpoint compares: another noise scale is another recipe.
        object.__setattr__(self, "name", f"noise({self.noise_scale:g}, {self.kind})")

    def factor(self, global_batch: float, reference_batch: float) -> float:
        if self.kind == "surge":
            return self._surge(global_batch) / self._surge(reference_batch)
        return gain(self.noise_scale, reference_batch, global_batch) ** (1.0 if self.kind == "sgd" else 0.5)

    def outside_range(self, global_batch: float, reference_batch: float, adam_like: bool) -> str:
        if adam_like != (self.kind != "sgd"):
            what = "an Adam-like optimizer" if adam_like else "an optimizer that is not Adam-like"
            return f'the noise rule of kind "{self.kind}" with {what}: kind="{"adam" if adam_like else "sgd"}" is the one for it'
        rise = self.factor(global_batch, reference_batch)
        if rise > UPWARD_LIMIT:
            return (
                f"the noise rule raises the rate by {rise:.3g}: upwards it does not see where training becomes unstable; tune the rate at the "
                "largest batch (tune's learning-rate range test) and let the rule scale it down"
            )
        return ""

    def _surge(self, batch: float) -> float:
        return 2 / (math.sqrt(self.noise_scale / batch) + math.sqrt(batch / self.noise_scale))
