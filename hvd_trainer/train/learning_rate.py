"""The rate of every param group at every step: rate the user gave x schedule x scale x warm-up, in this one place."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.rates import LAST_SET, REFERENCE, get_rate, set_rate
from hvd_trainer.optim.scaling import check_rate
from hvd_trainer.optim.schedules import StepSchedule, Timeline, TorchSchedule, as_schedule, warmup_lr


class LearningRate:
    """Sets the rates before each step.

    The product has no jump where the warm-up ends: its factor is 1 from there on, whatever the schedule does. A torch
    scheduler never sees scale or warm-up, so it cannot undo them and they cannot disturb its recursion.

    Args:
        optimizer: wrapped, so that its rates are scaled already.
        schedule: see `as_schedule`; a torch scheduler is one made on `optimizer` or on the optimizer in it.
        steps_per_epoch: >= 1.
        total_steps: of the whole run, >= 1.
        warmup_steps: length of the warm-up from the reference rate, >= 0.

    Raises:
        ConfigError: what `schedule_for` refuses.

    Example:
        >>> import torch, hvd_trainer as ht
        >>> w = torch.nn.Parameter(torch.zeros(1))
        >>> opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), ht.init(engine="single"), lr_scaling=8)
        >>> rates = ht.LearningRate(opt, ht.schedules.linear(), steps_per_epoch=10, total_steps=30, warmup_steps=10)
        >>> for step in (0, 5, 10, 20, 30):
        ...     rates.apply(step)
        ...     print(round(opt.param_groups[0]["lr"], 3))
        0.1
        0.45
        0.8
        0.4
        0.0
    """

    def __init__(
        self,
        optimizer: DistributedOptimizer,
        schedule: Any,
        steps_per_epoch: int,
        total_steps: int,
        warmup_steps: float = 0.0,
    ) -> None:
        self._optimizer = optimizer
        self._schedule = schedule_for(optimizer, schedule)
        self.timeline = Timeline(steps_per_epoch, total_steps)
        self.set_warmup(warmup_steps)

    def set_warmup(self, steps: float, start_factor: Optional[float] = None) -> None:
        """Warm up over `steps` from `start_factor` x peak; None: from the reference rate."""
        timeline = self.timeline
        self.timeline = Timeline(timeline.steps_per_epoch, timeline.total_steps, steps)
        self.start_factor = min(1.0, 1.0 / self._optimizer.lr_scale) if start_factor is None else start_factor

    def set_length(self, total_steps: int) -> None:
        """A later `fit` may go on for longer."""
        self.timeline = Timeline(self.timeline.steps_per_epoch, total_steps, self.timeline.warmup_steps)

    def apply(self, step: int) -> None:
        """Set the rates for the step that comes after `step` steps.

        Raises:
            ConfigError: the schedule gave a rate that is negative or not finite; the same on all ranks.
        """
        groups = self._optimizer.param_groups
        warm = warmup_lr(step, reference_lr=self.start_factor, peak_lr=1.0, warmup_steps=self.timeline.warmup_steps)
        references = [group[REFERENCE] for group in groups]
        position, timeline = self._optimizer.schedule_at(step, self.timeline)
        for group, rate in zip(groups, self._schedule.rates(position, timeline, references)):
            set_rate(group, check_rate(rate * (self._optimizer.lr_scale * warm)))
            group[LAST_SET] = get_rate(group)

    def current(self) -> list[float]:
        """The groups' rates as they are set."""
        return [get_rate(group) for group in self._optimizer.param_groups]

    def after_step(self, step: int, row: Optional[dict[str, Any]]) -> None:
        """`step` steps are done; `row` is the epoch's row where an epoch ended with it."""
        in_use = self.current()
        self._schedule.after_step(self.timeline, step, row)
        # A torch scheduler leaves its own, unscaled rates in the groups, where others would read and save them.
        for group, rate in zip(self._optimizer.param_groups, in_use):
            set_rate(group, rate)

    def state_dict(self) -> dict[str, Any]:
        return self._schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._schedule.load_state_dict(state)


def schedule_for(optimizer: torch.optim.Optimizer, schedule: Any) -> Union[StepSchedule, TorchSchedule]:
    """`as_schedule` for this optimizer.

    Args:
        optimizer: wrapped or not.
        schedule: see `as_schedule`.

    Raises:
        ConfigError: a torch scheduler that was made on another optimizer: its rates would be those of that one.
    """
    found = as_schedule(schedule)
    if isinstance(found, TorchSchedule) and _held(found.scheduler.optimizer) is not _held(optimizer):
        raise ConfigError(
            f"{found.kind} was made on another {type(_held(found.scheduler.optimizer)).__name__} than the "
            f"{type(_held(optimizer)).__name__} it is given with: it knows the rates of that one only",
            "a scheduler made on the optimizer that trains (wrapped or not)",
            f"optimizer = ...; schedule={found.kind}(optimizer, ...), anew where the optimizer was made anew",
        )
    return found


def _held(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    return optimizer.optimizer if isinstance(optimizer, DistributedOptimizer) else optimizer
