"""How Adam's other settings, weight decay and warm-up follow the batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.scaling import ScalingRule

SCALED = "scaled_settings"  # in a param group: what it had before, so that nothing is scaled twice


@dataclass(frozen=True)
class AdamSettings:
    """Adam's settings at a batch; `is_valid` is False where beta1 would be negative."""

    lr: float
    beta1: float
    beta2: float
    eps: float

    @property
    def is_valid(self) -> bool:
        return self.beta1 >= 0 and self.beta2 >= 0


def adam_sde(lr: float, beta1: float, beta2: float, eps: float, ratio: float) -> AdamSettings:
    """The settings at `ratio` times the batch that give the same stochastic differential equation.

        lr sqrt(k),   1 - k (1 - beta1),   1 - k (1 - beta2),   eps / sqrt(k)        (eps outside the root, as in torch)

    Valid where noise dominates (batch well below the noise scale), and for k <= 1 / (1 - beta1): 10 at beta1 = 0.9.

    Example:
        >>> adam_sde(0.001, 0.9, 0.999, 1e-8, 4)
        AdamSettings(lr=0.002, beta1=0.6000000000000001, beta2=0.996, eps=5e-09)

    Source: Malladi et al. 2022, arXiv 2205.10287, definition 5.2.
    """
    root = math.sqrt(ratio)
    return AdamSettings(lr * root, 1 - ratio * (1 - beta1), 1 - ratio * (1 - beta2), eps / root)


def half_life_samples(beta: float, batch: float) -> float:
    """After how many samples half of a moment's memory is gone.

    Example:
        >>> round(half_life_samples(0.999, 32))
        22170

    Source: Marek et al. 2025, arXiv 2507.07101.
    """
    return batch * math.log(0.5) / math.log(beta)


def beta_same_half_life(beta: float, ratio: float) -> float:
    """The beta at `ratio` times the batch that keeps the half-life in samples: beta^k.

    Example:
        >>> round(beta_same_half_life(0.999, 4), 6)
        0.996006

    Source: Marek et al. 2025, arXiv 2507.07101.
    """
    return beta**ratio


def weight_decay_same_timescale(weight_decay: float, ratio: float) -> float:
    """AdamW's weight decay at `ratio` times the batch, at the same rate and data: the timescale B / (lr wd D) stays.

    Source: Bergsma et al. 2025, arXiv 2505.13738.
    """
    return weight_decay * ratio


def legw_warmup_epochs(warmup_epochs: float, ratio: float) -> float:
    """The warm-up, in epochs, at `ratio` times the batch, beside the square-root rule: as many steps as at the reference.

    Source: You et al. 2019, arXiv 1901.08256 (LEGW).
    """
    return warmup_epochs * ratio


@dataclass(frozen=True)
class AdamSde:
    """The square-root rule for the rate, and with it beta1, beta2 and eps of every param group: see `adam_sde`.

    Valid below the gradient noise scale and up to a batch of 1 / (1 - beta1) times the reference.

    Source: Malladi et al. 2022, arXiv 2205.10287, definition 5.2.
    """

    name: ClassVar[str] = "adam_sde"

    def factor(self, global_batch: float, reference_batch: float) -> float:
        return math.sqrt(global_batch / reference_batch)

    def outside_range(self, global_batch: float, reference_batch: float, adam_like: bool) -> str:
        return "" if adam_like else "adam_sde with an optimizer that has no betas: only its rate is scaled, by the square root"

    def group_settings(self, group: dict[str, Any], ratio: float) -> dict[str, Any]:
        """betas and eps of a param group at `ratio` times the batch.

        Raises:
            ConfigError: beta1 would be negative.
        """
        if "betas" not in group:
            return {}
        found = adam_sde(1.0, *group["betas"], group["eps"], ratio)
        if not found.is_valid:
            raise ConfigError(
                f"AdamSde with betas={tuple(group['betas'])} for a batch {ratio:g} times the reference gives beta1 = {found.beta1:.3g}",
                f"at most {1 / (1 - min(group['betas'])):.3g} times the reference",
                'lr_scaling="sqrt", which leaves betas alone; or a larger reference batch',
            )
        return {"betas": (found.beta1, found.beta2), "eps": found.eps}


def apply_group_settings(groups: Iterable[dict[str, Any]], rule: ScalingRule, global_batch: float, reference_batch: float) -> None:
    """What the rule changes beside the rate, written into the groups, once: a group that was scaled is left alone.

    Raises:
        ConfigError: the rule cannot be used at this batch.
    """
    group_settings = getattr(rule, "group_settings", None)
    if group_settings is None:
        return
    for group in groups:
        if SCALED not in group:
            changed = group_settings(group, float(global_batch / reference_batch))
            group[SCALED] = {name: group[name] for name in changed}
            group.update(changed)
