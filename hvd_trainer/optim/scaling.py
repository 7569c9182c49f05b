"""How the learning rate follows the global batch: one rule a class, each relative to a reference batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, Union, runtime_checkable

from hvd_trainer.errors import ConfigError


@runtime_checkable
class ScalingRule(Protocol):
    """Anything with a name and a `factor`: peak learning rate = factor x the rate tuned for the reference batch."""

    name: str

    def factor(self, global_batch: float, reference_batch: float) -> float: ...


@dataclass(frozen=True)
class Linear:
    """`k = global / reference`. Plain or momentum SGD while the batch is well below the gradient noise scale.

    Source: Goyal et al. 2017, arXiv 1706.02677, section 2.1.
    """

    name: str = "linear"

    def factor(self, global_batch: float, reference_batch: float) -> float:
        return float(Fraction(global_batch) / Fraction(reference_batch))


@dataclass(frozen=True)
class Sqrt:
    """`sqrt(k)`: keeps the covariance of the step; the usual choice for Adam-like optimizers.

    Source: Krizhevsky 2014, arXiv 1404.5997; Malladi et al. 2022, arXiv 2205.10287 (Adam).
    """

    name: str = "sqrt"

    def factor(self, global_batch: float, reference_batch: float) -> float:
        return math.sqrt(Fraction(global_batch) / Fraction(reference_batch))


@dataclass(frozen=True)
class Fixed:
    """A given factor, whatever the batch; 1 is no scaling."""

    value: float
    name: str = "fixed"

    def factor(self, global_batch: float, reference_batch: float) -> float:
        return self.value


RULES: dict[str, ScalingRule] = {"linear": Linear(), "sqrt": Sqrt(), "none": Fixed(1.0, "none")}
RuleLike = Union[str, float, ScalingRule]


def scaling_rule(rule: RuleLike) -> ScalingRule:
    """The rule object for "linear", "sqrt", "none", a number > 0, or such an object.

    Raises:
        ConfigError: anything else.
    """
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    if isinstance(rule, (int, float)) and not isinstance(rule, bool) and math.isfinite(rule) and rule > 0:
        return Fixed(float(rule))
    if not isinstance(rule, (str, type)) and isinstance(rule, ScalingRule):
        return rule
    raise ConfigError(
        f"lr_scaling={rule!r}",
        '"linear", "sqrt", "none", a number > 0, or an object with name and factor(global_batch, reference_batch)',
        'lr_scaling="linear" for SGD, "sqrt" or "none" for Adam-like optimizers',
    )


def scale_lr(lr: float, *, global_batch: int, reference_batch: Union[int, Fraction], rule: RuleLike = "linear") -> float:
    """The peak learning rate for a global batch, from the rate that was tuned for another.

    Args:
        lr: the rate tuned for `reference_batch`, >= 0.
        global_batch: samples over all ranks in one step, >= 1.
        reference_batch: samples in one step where `lr` was tuned, >= 1.
        rule: see `scaling_rule`.

    Raises:
        ConfigError: `lr` is negative or not finite, a batch is below 1, or the rule is unknown.

    Example:
        >>> scale_lr(0.1, global_batch=8 * 64, reference_batch=64)      # 8 ranks x 64, tuned for 64
        0.8
        >>> scale_lr(0.1, global_batch=8 * 64, reference_batch=512)     # the same batch, tuned for it
        0.1
        >>> scale_lr(0.1, global_batch=256, reference_batch=64, rule="sqrt")
        0.2

    Source: Goyal et al. 2017, arXiv 1706.02677.
    """
    check_rate(lr)
    for name, value in (("global_batch", global_batch), ("reference_batch", reference_batch)):
        if not value >= 1:
            raise ConfigError(f"scale_lr({name}={value!r})", "at least 1 sample", f"pass the batch in samples as {name}=")
    return lr * checked_factor(scaling_rule(rule), global_batch, reference_batch)


def checked_factor(rule: ScalingRule, global_batch: Union[int, Fraction], reference_batch: Union[int, Fraction]) -> float:
    """`rule.factor(...)`, refused where it is not a finite number > 0."""
    # Ours divide exactly; a user's may call numpy, which knows no Fraction.
    exact = isinstance(rule, (Linear, Sqrt, Fixed))
    factor = float(rule.factor(*(value if exact else _plain(value) for value in (global_batch, reference_batch))))
    if not (math.isfinite(factor) and factor > 0):
        raise ConfigError(
            f"scaling rule {rule.name!r} gave the factor {factor} for global batch {global_batch}, reference {reference_batch}",
            "a finite number > 0",
            "correct the rule's factor()",
        )
    return factor


def check_rate(lr: float) -> float:
    """`lr` as a float; ConfigError where it is negative, NaN or infinite."""
    value = float(lr)
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"learning rate {value}", "a finite number >= 0", "correct lr= of the optimizer or the schedule")
    return value


def _plain(value: Union[int, Fraction]) -> Union[int, float]:
    return int(value) if value == int(value) else float(value)
