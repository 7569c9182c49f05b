"""Gradual warm-up of the learning rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional, Union

from hvd_trainer.errors import ConfigError
from hvd_trainer.train.callbacks.base import Callback
from hvd_trainer.values import as_number

if TYPE_CHECKING:
    from hvd_trainer.data.loader import Loader
    from hvd_trainer.data.stream import StreamLoader
    from hvd_trainer.train.trainer import Trainer


class Warmup(Callback):
    """Raise the rate from the reference rate to the peak, by the same amount at every optimizer step.

    The first step has the reference rate, the step after the warm-up has the peak, no step is above it. Composes with
    any schedule (a factor that is 1 from its end on) and is recomputed, not restored, on a resume. `schedules.warmup_lr`
    is the same as a pure function.

    Args:
        epochs: length in epochs, >= 0, may be fractional. Give one of epochs, steps, samples.
        steps: length in optimizer steps.
        samples: length in samples over all ranks.
        start_factor: begin at this fraction of the peak (0..1) instead of the reference rate; for rates that are not
            scaled (lr_scaling="none"), where reference and peak are the same.

    Raises:
        ConfigError: not exactly one length, a negative one, or a fraction outside 0..1.

    Source: Goyal et al. 2017, arXiv 1706.02677, section 2.2.
    """

    def __init__(
        self,
        epochs: Optional[float] = None,
        *,
        steps: Optional[float] = None,
        samples: Optional[float] = None,
        start_factor: Optional[float] = None,
    ) -> None:
        lengths = (("epochs", as_number(epochs)), ("steps", as_number(steps)), ("samples", as_number(samples)))
        given = {name: value for name, value in lengths if value is not None}
        if len(given) != 1 or not all(isinstance(value, float) and 0 <= value < math.inf for value in given.values()):
            raise ConfigError(f"Warmup({given})", "exactly one of epochs, steps and samples, >= 0", "ht.Warmup(epochs=5)")
        start_factor = as_number(start_factor)
        if start_factor is not None and not (isinstance(start_factor, float) and 0 <= start_factor <= 1):
            raise ConfigError(f"Warmup(start_factor={start_factor!r})", "a fraction of the peak, 0..1", "leave it out")
        self._length = given
        self._start_factor = start_factor

    def num_steps(self, steps_per_epoch: int, global_batch: int) -> float:
        """The length in optimizer steps, maybe fractional.

        Example:
            >>> Warmup(epochs=2.5).num_steps(steps_per_epoch=10, global_batch=64)
            25.0
        """
        if "epochs" in self._length:
            return self._length["epochs"] * steps_per_epoch
        if "steps" in self._length:
            return self._length["steps"]
        return self._length["samples"] / global_batch

    def describe(self, loader: Union[Loader, StreamLoader]) -> str:
        """Length and start, for a checkpoint's recipe."""
        steps = self.num_steps(loader.steps_per_epoch, loader.plan.global_batch)
        start = "the reference rate" if self._start_factor is None else f"{self._start_factor:g} x the peak"
        return f"{steps:g} steps from {start}" if steps else "none"

    def fit_start(self, trainer: Trainer) -> None:
        steps = self.num_steps(trainer.loader.steps_per_epoch, trainer.loader.plan.global_batch)
        trainer.learning_rate.set_warmup(steps, self._start_factor)
