"""The gradient noise scale of the run, measured while it trains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import torch

from hvd_trainer.log import warn
from hvd_trainer.optim.gradient_norms import GradientNorms
from hvd_trainer.optim.noise import NoiseEstimate
from hvd_trainer.optim.noise_average import NoiseAverage
from hvd_trainer.optim.scaling import Linear, Sqrt, range_warning
from hvd_trainer.train.callbacks.base import Callback, check_whole

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer


LARGE_PARAMS, EVERY_OF_LARGE = 4_000_000, 8


class NoiseScale(Callback):
    """Measure the gradient noise scale: the batch, in samples, beyond which more samples a step hardly help.

    From the squared norms of what ranks and micro-batches computed, against that of their average: it takes two of them,
    and costs one more look at each gradient. Before clipping; loss scales, accumulation and uneven batches are accounted
    for. Dropout counts as noise, which it is; with batch statistics (BatchNorm) it is an approximation.

    The epoch's row gets `noise_scale` (now: a moving average) with `noise_scale_low` and `noise_scale_high`, its 95 %
    interval, and `noise_scale_mean`, the clock-weighted mean since the start, which is near the critical batch of the whole
    run; with several param groups also `noise_scale_group0`, .... Where it cannot be told, the column says "undetermined".

    Args:
        every_steps: measure every so many steps, >= 1; None: each step, but every eighth where the model has 4 million
            parameters or more: there one more look at each gradient costs memory bandwidth, 14 % of a step of an MLP of 19
            million, and the noise scale changes slowly.
        decay: of the moving average, for each measured step.
        window: measured steps that are averaged before they count as one in the mean over the run, >= 2.

    Raises:
        ConfigError: an argument is out of range.

    Source: McCandlish et al. 2018, arXiv 1812.06162.
    """

    def __init__(self, every_steps: Optional[int] = None, *, decay: float = 0.99, window: int = 16) -> None:
        if every_steps is not None:
            check_whole("NoiseScale", "every_steps", every_steps)
        self._given, self._every_steps = every_steps, every_steps or 1
        self.average = NoiseAverage(decay, window)
        self._norms: Optional[GradientNorms] = None
        self._observed: Any = None

    def wants_norms(self, step: int) -> bool:
        """As every `NormsObserver`."""
        return step % self._every_steps == 0

    def observe(self, norms: GradientNorms) -> None:
        """As every `NormsObserver`; how many samples the step had is known when it ends."""
        self._norms = norms

    def fit_start(self, trainer: Trainer) -> None:
        if self._given is None:
            num_params = sum(param.numel() for param in trainer.model.parameters() if param.requires_grad)
            self._every_steps = EVERY_OF_LARGE if num_params >= LARGE_PARAMS else 1
        # Shards of a finite set do not overlap within an epoch; a stream has no size.
        self.average.num_samples = getattr(trainer.loader, "num_samples", None)
        if self._observed is not trainer.optimizer:
            trainer.optimizer.add_norms_observer(self)
            self._observed = trainer.optimizer

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        if self._norms is not None:
            self.average.add(self._norms, report.samples, report.step)
            self._norms = None

    def epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        now, mean = self.average.current(), self.average.mean()
        row["noise_scale"] = shown(now)
        if now.value is not None:
            row["noise_scale_low"], row["noise_scale_high"] = now.low, now.high
        row["noise_scale_mean"] = shown(mean)
        if self.average.num_groups > 1:
            for group in range(self.average.num_groups):
                row[f"noise_scale_group{group}"] = shown(self.average.current(group))

    def fit_end(self, trainer: Trainer) -> None:
        mean = self.average.mean()
        trainer.comm.say(f"gradient noise scale over {self.average.num_steps} steps: {mean}")
        for text in self._doubts(trainer, mean.value):
            warn(f"note: {text}", rank=trainer.comm.rank)

    def _doubts(self, trainer: Trainer, value: Optional[float]) -> list[str]:
        found = []
        if any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in trainer.model.modules()):
            found.append("with batch statistics (BatchNorm) a sample's gradient depends on the others: the noise scale is an approximation")
        if value is None:
            return found
        num_samples, plan = self.average.num_samples, trainer.loader.plan
        if num_samples and value > num_samples / 4:
            found.append(f"the noise scale is {value:.3g} of only {num_samples} training samples: a batch that large is nearly the whole set")
        if isinstance(trainer.rule, (Linear, Sqrt)):
            rule = replace(trainer.rule, noise_scale=value)
            found.append(range_warning(rule, plan.global_batch, trainer.optimizer.reference_batch, trainer.optimizer.defaults))
        return [text for text in found if text]

    def state_dict(self) -> dict[str, Any]:
        return self.average.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average.load_state_dict(state)


def shown(estimate: NoiseEstimate) -> Any:
    """What a column says: a number, or that there is none."""
    return "undetermined" if estimate.value is None else estimate.value
