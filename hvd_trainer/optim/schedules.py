"""Learning-rate schedules as pure functions of the global step; the rate at a step is peak x warm-up x schedule.

Every function here is the same on 1 and on N ranks and needs nothing but integers, so a resumed run recomputes what a
straight run had. A torch scheduler keeps state of its own; `TorchSchedule` lets it live in the rates that the user gave
and multiplies what it says, so that neither scaling nor warm-up disturbs it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.rates import SCALE, get_rate, set_rate


@dataclass(frozen=True)
class Timeline:
    """What a schedule may know about the run besides the step.

    Args:
        steps_per_epoch: optimizer steps in an epoch, >= 1.
        total_steps: optimizer steps in the whole run, >= 1.
        warmup_steps: length of the warm-up in steps, maybe fractional, >= 0.
    """

    steps_per_epoch: int
    total_steps: int
    warmup_steps: float = 0.0


Schedule = Callable[[int, Timeline], float]


def warmup_lr(step: int, *, reference_lr: float, peak_lr: float, warmup_steps: float) -> float:
    """The rate of step `step` (from 0) in a gradual warm-up: the same amount more at every step, then the peak.

    `lr(t) = reference + t / W * (peak - reference)` for t <= W. Never above the peak, also where W is not whole.

    Args:
        step: optimizer steps done, >= 0.
        reference_lr: rate of step 0 (tuned for the reference batch); a reference above the peak starts at the peak.
        peak_lr: rate from step W on.
        warmup_steps: W >= 0, may be fractional; 0 is no warm-up.

    Example:
        >>> [round(warmup_lr(t, reference_lr=0.1, peak_lr=0.8, warmup_steps=50), 3) for t in (0, 1, 49, 50, 51)]
        [0.1, 0.114, 0.786, 0.8, 0.8]

    Source: Goyal et al. 2017, arXiv 1706.02677, section 2.2.
    """
    if step >= warmup_steps:
        return peak_lr
    start = min(reference_lr, peak_lr)
    return min(peak_lr, start + step * (peak_lr - start) / warmup_steps)


def _described(text: str, function: Schedule) -> Schedule:
    """`function` with a text that a checkpoint's recipe can hold and a message can show."""
    function.description = text
    return function


def constant() -> Schedule:
    """The peak rate throughout."""
    return _described("constant()", lambda step, timeline: 1.0)


def cosine(total_epochs: Optional[float] = None, final: float = 0.0) -> Schedule:
    """Half a cosine from the peak, where the warm-up ends, to `final` x peak at the end.

    Args:
        total_epochs: epochs from the start of training to the end of the decay, > 0; None: the length of the run.
        final: fraction of the peak at the end, 0..1.

    Example:
        >>> f = cosine(total_epochs=10)
        >>> [round(f(t, Timeline(10, 100, warmup_steps=20)), 3) for t in (0, 20, 60, 100, 120)]
        [1.0, 1.0, 0.5, 0.0, 0.0]

    Source: Loshchilov & Hutter 2017, arXiv 1608.03983, equation 5 without restarts.
    """
    return _decay("cosine(", total_epochs, final, lambda progress: 0.5 * (1 + math.cos(math.pi * progress)))


def linear(total_epochs: Optional[float] = None, final: float = 0.0) -> Schedule:
    """A straight line from the peak, where the warm-up ends, to `final` x peak at the end; arguments as `cosine`."""
    return _decay("linear(", total_epochs, final, lambda progress: 1 - progress)


def polynomial(power: float = 2.0, total_epochs: Optional[float] = None, final: float = 0.0) -> Schedule:
    """`(1 - progress) ** power` from the end of the warm-up on.

    Args:
        power: > 0; 2 is what LARS was published with.
        total_epochs: as in `cosine`.
        final: as in `cosine`.
    """
    if not power > 0:
        raise ConfigError(f"polynomial(power={power!r})", "a number > 0", "power=2.0")
    return _decay(f"polynomial(power={float(power):g}, ", total_epochs, final, lambda progress: (1 - progress) ** power)


def multistep(milestones: Sequence[float], gamma: float = 0.1) -> Schedule:
    """Multiply by `gamma` at each milestone.

    Args:
        milestones: epochs since the start of training (the warm-up counts), rising, > 0.
        gamma: > 0.

    Example:
        >>> f = multistep([30, 60, 80])
        >>> [round(f(t, Timeline(10, 900)), 4) for t in (299, 300, 800)]
        [1.0, 0.1, 0.001]

    Source: Goyal et al. 2017, arXiv 1706.02677, section 5.1.
    """
    marks = list(milestones)
    if not marks or marks[0] <= 0 or any(b <= a for a, b in zip(marks, marks[1:])) or not gamma > 0:
        raise ConfigError(f"multistep({marks}, gamma={gamma!r})", "rising epochs > 0 and gamma > 0", "multistep([30, 60, 80])")
    # The slack: 1.1 epochs of 10 steps are 11.000000000000002 in floating point, and mean step 11.
    text = f"multistep([{', '.join(f'{mark:g}' for mark in marks)}], gamma={float(gamma):g})"
    return _described(text, lambda step, timeline: gamma ** sum(step >= mark * timeline.steps_per_epoch - 1e-6 for mark in marks))


def _decay(name: str, total_epochs: Optional[float], final: float, shape: Callable[[float], float]) -> Schedule:
    if total_epochs is not None and not total_epochs > 0:
        raise ConfigError(f"total_epochs={total_epochs!r}", "a number > 0, or None for the length of the run", "total_epochs=20")
    if not 0 <= final <= 1:
        raise ConfigError(f"final={final!r}", "a fraction of the peak, 0..1", "final=0.0")

    def factor(step: int, timeline: Timeline) -> float:
        total = timeline.total_steps if total_epochs is None else total_epochs * timeline.steps_per_epoch
        length = total - timeline.warmup_steps
        progress = 1.0 if length <= 0 and step >= total else (step - timeline.warmup_steps) / max(length, 1e-9)
        return final + (1 - final) * shape(min(1.0, max(0.0, progress)))

    length = None if total_epochs is None else f"{float(total_epochs):g}"
    return _described(f"{name}total_epochs={length}, final={float(final):g})", factor)


class StepSchedule:
    """A pure function of the step, as ours above or the user's own `f(step) -> factor`."""

    def __init__(self, function: Callable) -> None:
        # What the function computes cannot be compared; its name can.
        name = getattr(function, "__qualname__", type(function).__qualname__).rpartition("<locals>.")[2]
        self.kind = getattr(function, "description", f"function {name}")
        self._function = function
        self._takes_timeline = _num_required_arguments(function) >= 2

    def rates(self, step: int, timeline: Timeline, references: list[float]) -> list[float]:
        """The groups' rates at this step, before scaling and warm-up, from the rates the user gave."""
        factor = float(self._function(step, timeline) if self._takes_timeline else self._function(step))
        return [reference * factor for reference in references]

    def after_step(self, timeline: Timeline, step: int, row: Optional[dict[str, Any]]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class TorchSchedule:
    """A torch scheduler, stepped per optimizer step or per epoch as it means to be, in the rates the user gave.

    Args:
        scheduler: made on the user's optimizer (wrapped or not).
        every: "step" or "epoch"; None: "step" for OneCycleLR and CyclicLR, else "epoch", as torch's manual uses them.
        monitor: column of the epoch's row that ReduceLROnPlateau watches (it is the same on all ranks); a row without it (no
            evaluation in that epoch) does not count.
    """

    def __init__(self, scheduler: Any, every: Optional[str] = None, monitor: str = "loss") -> None:
        if every not in (None, "step", "epoch"):
            raise ConfigError(f"every={every!r}", '"step" or "epoch"', 'ht.schedules.TorchSchedule(scheduler, every="step")')
        torch_schedules = torch.optim.lr_scheduler
        per_step = isinstance(scheduler, (torch_schedules.OneCycleLR, torch_schedules.CyclicLR))
        if every == "step" and isinstance(scheduler, torch_schedules.ReduceLROnPlateau):
            raise ConfigError('ReduceLROnPlateau with every="step"', 'every="epoch": it watches a column of the epoch\'s row', "leave every out")
        self.kind = type(scheduler).__name__
        self.scheduler, self.monitor = scheduler, monitor
        self.every = every or ("step" if per_step else "epoch")
        self._rates = [get_rate(group) / group.get(SCALE, 1.0) for group in scheduler.optimizer.param_groups]

    def rates(self, step: int, timeline: Timeline, references: list[float]) -> list[float]:
        """The groups' rates as the scheduler left them; groups added since have the rate they came with."""
        return self._rates + references[len(self._rates) :]

    def after_step(self, timeline: Timeline, step: int, row: Optional[dict[str, Any]]) -> None:
        """Step the scheduler if it is due: `step` optimizer steps are done; `row` is the epoch's where one ended.

        Raises:
            ConfigError: at the end of the run, its row does not have what ReduceLROnPlateau watches.
        """
        if self.every == "epoch" and row is None:
            return
        watches = isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if watches and self.monitor not in row:  # no evaluation in this epoch
            if step >= timeline.total_steps:
                raise ConfigError(
                    f"ReduceLROnPlateau watches {self.monitor!r}", f"one of {', '.join(row)}", "TorchSchedule(scheduler, monitor=...)"
                )
            return
        groups = self.scheduler.optimizer.param_groups
        for group, rate in zip(groups, self._rates):
            set_rate(group, rate)
        if watches:
            self.scheduler.step(row[self.monitor])
        else:
            self.scheduler.step()
        self._rates = [get_rate(group) for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler.state_dict(), "rates": self._rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state["scheduler"])
        self._rates = state["rates"]


ScheduleLike = Union[Callable, StepSchedule, TorchSchedule, None]


def as_schedule(schedule: Any) -> Union[StepSchedule, TorchSchedule]:
    """Whatever a user may pass as `schedule=`, as an object with `rates` and `after_step`.

    Args:
        schedule: None, a function of the step, a torch scheduler, or one of ours.

    Raises:
        ConfigError: anything else.
    """
    if isinstance(schedule, (StepSchedule, TorchSchedule)):
        return schedule
    if schedule is None:
        return StepSchedule(constant())
    lr_scheduler = torch.optim.lr_scheduler
    if isinstance(schedule, (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau)):
        return TorchSchedule(schedule)
    if callable(schedule) and not isinstance(schedule, type):
        return StepSchedule(schedule)
    raise ConfigError(
        f"schedule={schedule!r}",
        "a function of the step that returns a factor of the peak, one of ht.schedules, or a torch LRScheduler object",
        "schedule=ht.schedules.cosine(total_epochs=20)",
    )


def _num_required_arguments(function: Callable) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
