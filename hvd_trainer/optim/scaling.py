"""How the learning rate follows the global batch: one rule a class, each relative to a reference batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Optional, Protocol, Union, runtime_checkable

from hvd_trainer.errors import ConfigError

LINEAR_LIMIT, SQRT_LIMIT = 32, 64  # batch over reference batch, as far as the papers went

@runtime_checkable
class ScalingRule(Protocol):
    """Anything with a name and a `factor`: peak learning rate = factor x the rate tuned for the reference batch.

    A rule may also have `outside_range(global_batch, reference_batch, adam_like) -> str` (see `range_warning`) and
    `group_settings(group, ratio) -> dict` (see `scaling_adam.apply_group_settings`).
    """

    name: str

    def factor(self, global_batch: float, reference_batch: float) -> float: ...


@dataclass(frozen=True)
class Linear:
    """`k = global / reference`, for plain and momentum SGD, with a warm-up.

    Holds while the batch is well below the gradient noise scale: there one large step does what k small ones do. Published
    up to k = 32 (256 to 8,192 on ImageNet); on small problems it diverges long before.

    Args:
        noise_scale: in samples, where it is known (`ht.NoiseScale` measures it): the warning then compares with it.

    Source: Goyal et al. 2017, arXiv 1706.02677, section 2.1.
    """

    name: str = "linear"
    noise_scale: Optional[float] = None

    def factor(self, global_batch: float, reference_batch: float) -> float:
        return float(Fraction(global_batch) / Fraction(reference_batch))

    def outside_range(self, global_batch: float, reference_batch: float, adam_like: bool) -> str:
        ratio = float(global_batch / reference_batch)
        if adam_like and ratio != 1:
            return (
                f"linear scaling (factor {ratio:g}) of an Adam-like optimizer: it divides by the gradient's own size, so its steps do not "
                "shrink as the batch grows, and linear scaling often diverges; 'sqrt' or 'none' is the usual rule "
                "(Malladi et al. 2022, arXiv 2205.10287)"
            )
        return _beyond_noise(self, global_batch, ratio, adam_like) or (
            f"linear scaling by {ratio:g}: published up to {LINEAR_LIMIT} (Goyal et al. 2017, arXiv 1706.02677), and valid only well below the "
            "gradient noise scale, which ht.NoiseScale() measures"
            if ratio > LINEAR_LIMIT and self.noise_scale is None
            else ""
        )


@dataclass(frozen=True)
class Sqrt:
    """`sqrt(k)`: keeps the covariance of the step; the usual choice for Adam-like optimizers.

    For Adam it holds while the batch is well below the gradient noise scale; beyond it the best rate falls again (`NoiseRule(kind="surge")`). For SGD it keeps the noise of a step, not its progress: a smaller rate than `linear`, safer
    and slower below the noise scale, and too large above it as well. Published up to k = 64 (LAMB, 512 to 32,768).

    Args:
        noise_scale: in samples, where it is known; as in `Linear`.

    Source: Krizhevsky 2014, arXiv 1404.5997; Malladi et al. 2022, arXiv 2205.10287 (Adam); You et al. 2019, arXiv 1904.00962.
    """

    name: str = "sqrt"
    noise_scale: Optional[float] = None

    def factor(self, global_batch: float, reference_batch: float) -> float:
        return math.sqrt(Fraction(global_batch) / Fraction(reference_batch))

    def outside_range(self, global_batch: float, reference_batch: float, adam_like: bool) -> str:
        ratio = float(global_batch / reference_batch)
        return _beyond_noise(self, global_batch, ratio, adam_like) or (
            f"square-root scaling for a batch {ratio:g} times the reference: published up to {SQRT_LIMIT} (You et al. 2019, arXiv 1904.00962), and "
            "valid only below the gradient noise scale, which ht.NoiseScale() measures"
            if ratio > SQRT_LIMIT and self.noise_scale is None
            else ""
        )


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
    """The rule object for "linear", "sqrt", "none", "adascale", a number > 0, or such an object.

    Raises:
        ConfigError: anything else.
    """
    if isinstance(rule, str) and rule in RULES:
        return RULES[rule]
    if isinstance(rule, str) and rule == "adascale":
        from hvd_trainer.optim.adascale import AdaScale  # it builds on this module

        return AdaScale()  # one for each optimizer: it has state
    if isinstance(rule, (int, float)) and not isinstance(rule, bool) and math.isfinite(rule) and rule > 0:
        return Fixed(float(rule))
    if not isinstance(rule, (str, type)) and isinstance(rule, ScalingRule):
        return rule
    raise ConfigError(
        f"lr_scaling={rule!r}",
        '"linear", "sqrt", "none", "adascale", a number > 0, or an object with name and factor(global_batch, reference_batch)',
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


def range_warning(rule: ScalingRule, global_batch: float, reference_batch: float, defaults: dict[str, Any]) -> str:
    """Why the rule is not to be trusted at this batch, as a sentence; "" where nothing speaks against it.

    Args:
        rule: those of the user may have no range.
        global_batch, reference_batch: samples.
        defaults: of the optimizer; one with `betas` is Adam-like.

    Example:
        >>> range_warning(Linear(), 4096, 256, {})
        ''
        >>> range_warning(Linear(noise_scale=200), 4096, 256, {})[:60]
        'linear scaling by 16 to batch 4096, which is 20.5 times the '
    """
    outside_range = getattr(rule, "outside_range", None)
    return outside_range(float(global_batch), float(reference_batch), "betas" in defaults) if outside_range else ""


def _beyond_noise(rule: Union[Linear, Sqrt], global_batch: float, ratio: float, adam_like: bool) -> str:
    if rule.noise_scale is None or ratio <= 1 or global_batch <= rule.noise_scale:
        return ""
    return (
        f"{rule.name} scaling by {rule.factor(ratio, 1):g} to batch {global_batch:g}, which is {global_batch / max(rule.noise_scale, 1e-9):.3g} times the "
        f"gradient noise scale of {rule.noise_scale:.3g}: the rate it asks for is more than the gradient is worth there; "
        f"lr_scaling=ht.NoiseRule({rule.noise_scale:.3g}{', kind=' + repr('adam') if adam_like else ''}) follows the noise"
    )


def check_rate(lr: float) -> float:
    """`lr` as a float; ConfigError where it is negative, NaN or infinite."""
    value = float(lr)
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"learning rate {value}", "a finite number >= 0", "correct lr= of the optimizer or the schedule")
    return value


def _plain(value: Union[int, Fraction]) -> Union[int, float]:
    return int(value) if value == int(value) else float(value)
