"""Where a search begins: the rows that a table must have, and the rates that the rules expect (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from hvd_trainer.optim.noise_rule import NoiseRule
from hvd_trainer.optim.scaling import Linear, ScalingRule, Sqrt
from hvd_trainer.tune.trial import Settings

DEFAULT, PREDICTED, LINEAR, FITS = "script's default", "predicted", "linear rule", "N x what fits"
STEPS_UP = (4, 16)  # times the script's batch
# For an optimizer that the script was not tuned for: torch's and the papers' defaults, only as a middle to search around.
USUAL_RATE = {"sgd": 0.1, "lars": 1.0, "lamb": 2e-3, "adam": 1e-3, "adamw": 1e-3, "nadam": 2e-3, "rmsprop": 1e-3, "adagrad": 1e-2}
ADAM_LIKE = ("adam", "adamw", "nadam", "radam", "adamax", "lamb")


@dataclass(frozen=True)
class Base:
    """What the script is tuned for, from its first trial.

    Args:
        global_batch: of the script as it is.
        peak_lr: of the script as it is.
        reference_batch, reference_lr: the batch that its rate was given for, and that rate.
        num_samples: of an epoch; None: a stream.
        optimizer: its name.
    """

    global_batch: int
    peak_lr: float
    reference_batch: float
    reference_lr: float
    num_samples: Optional[int]
    optimizer: str

    @staticmethod
    def of(start: dict[str, Any]) -> Base:
        """From the start event.

        Example:
            >>> Base.of({"global_batch": 64, "peak_lr": 0.2, "lr_scale": 2.0, "reference_batch": 32.0, "ranks": 2, "num_samples": 900, "optimizer": "sgd"})
            Base(global_batch=64, peak_lr=0.2, reference_batch=32.0, reference_lr=0.1, num_samples=900, optimizer='sgd')
        """
        reference = start["reference_batch"] or start["global_batch"] / start["ranks"]
        return Base(
            start["global_batch"], start["peak_lr"], reference, start["peak_lr"] / start["lr_scale"], start["num_samples"], start["optimizer"]
        )

    def largest_batch(self) -> int:
        """Twice the highest step up, but half an epoch at most."""
        most = 2 * STEPS_UP[-1] * self.global_batch
        return most if self.num_samples is None else max(self.global_batch, min(most, self.num_samples // 2))


def middle_rate(base: Base, batch: int, optimizer: Optional[str], noise_scale: Optional[float]) -> float:
    """The rate that a search at this batch is laid around.

    The noise rule where the noise scale is known. Else the square root: between the linear rule, which diverges for large
    batches, and the same rate, which is slow.

    Args:
        base: the script.
        batch: samples a step.
        optimizer: None or the script's: from its rate; another: from the usual one.
        noise_scale: in samples.

    Example:
        >>> base = Base(64, 0.2, 32, 0.1, 900, "sgd")
        >>> middle_rate(base, 128, None, None), round(middle_rate(base, 128, "adamw", None), 5)
        (0.2, 0.00141)
        >>> round(middle_rate(base, 128, None, 100.0), 4)
        0.2316
    """
    name = optimizer or base.optimizer
    rule: ScalingRule = Sqrt()
    if noise_scale is not None:
        rule = NoiseRule(noise_scale, kind="adam" if name in ADAM_LIKE else "sgd")
    if name == base.optimizer:
        return base.reference_lr * rule.factor(batch, base.reference_batch)
    return USUAL_RATE.get(name, 1e-3) * rule.factor(batch, base.global_batch)


def rows(base: Base, ranks: int, micro_batch: Optional[int], noise_scale: Optional[float], largest: int) -> list[tuple[str, Settings]]:
    """The trials that are always run: (label, settings), without the script's default.

    Args:
        base: the script.
        ranks: of all of them.
        micro_batch: samples that fit on a rank; None: not known, then there is no such row.
        noise_scale: in samples; None: not known.
        largest: no batch of the rules is above it; "N x what fits" may be, up to an epoch.

    Example:
        >>> for label, settings in rows(Base(64, 0.2, 32, 0.1, 9000, "sgd"), 2, 1000, None, 2000):
        ...     print(label, settings.global_batch, round(settings.peak_lr, 3))
        linear rule 256 0.8
        sqrt rule 256 0.283
        linear rule 1024 3.2
        sqrt rule 1024 0.566
        N x what fits 2000 6.25
    """
    middle = "sqrt rule" if noise_scale is None else "noise rule"
    found = []
    batches = [base.global_batch * up for up in STEPS_UP if base.global_batch * up <= largest] or [max(ranks, largest)]
    for batch in batches:
        found.append((LINEAR, Settings(ranks, batch, _linear(base, batch))))
        found.append((middle, Settings(ranks, batch, middle_rate(base, batch, None, noise_scale))))
    if micro_batch is not None:
        batch = min(ranks * micro_batch, base.num_samples or ranks * micro_batch)
        found.append((FITS, Settings(ranks, batch, _linear(base, batch))))
    return found


def _linear(base: Base, batch: int) -> float:
    return base.reference_lr * Linear().factor(batch, base.reference_batch)
