"""The plan that is printed before the first step: what a person checks before walking away."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from hvd_trainer.optim.rates import REFERENCE

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import Trainer


def plan_text(trainer: Trainer) -> str:
    """The lines, for a trainer that stands before its first step."""
    loader, opt, timeline = trainer.loader, trainer.optimizer, trainer.learning_rate.timeline
    plan = loader.plan
    micro = Counter(plan.micro_batches(rank=0))
    micro_text = " + ".join(f"{count} x {size}" for size, count in micro.items())
    uneven = "" if len(set(plan.rank_batches)) == 1 else f" (uneven: {plan.rank_batches[0]} to {plan.rank_batches[-1]} a rank, weighted exactly)"
    peak = opt.param_groups[0][REFERENCE] * opt.lr_scale
    reference = opt.param_groups[0][REFERENCE]
    lines = [
        f"batch         {plan.global_batch} = {plan.num_ranks} rank{'s' * (plan.num_ranks > 1)} x {plan.rank_batches[0]}{uneven}; micro-batches: {micro_text}",
        f"data          {loader.describe()}",
        f"learning rate {reference:g} for batch {float(opt.reference_batch):g}, peak {peak:g} ({trainer.rule.name}: x {opt.lr_scale:g})",
    ]
    if timeline.warmup_steps and trainer.learning_rate.start_factor < 1:
        start = peak * trainer.learning_rate.start_factor
        lines.append(f"warm-up       {timeline.warmup_steps:g} steps from {start:g} to {peak:g}")
    elif timeline.warmup_steps:
        lines.append("warm-up       none needed: the peak is not above the reference rate (start_factor= would begin lower)")
    else:
        lines.append("warm-up       none")
    lines.append(f"run           {_length(trainer)} with {type(opt.optimizer).__name__}" + (f", from step {trainer.step}" if trainer.step else ""))
    return "plan  " + "\n      ".join(lines)


def _length(trainer: Trainer) -> str:
    steps, steps_per_epoch = trainer.learning_rate.timeline.total_steps, trainer.loader.steps_per_epoch
    if isinstance(steps_per_epoch, int):
        return f"{_count(steps, 'step')} = {_count(steps / steps_per_epoch, 'epoch')}"
    return _count(steps, "step") if math.isfinite(steps) else "as many steps as the epochs have"


def _count(number: float, noun: str) -> str:
    text = str(number) if isinstance(number, int) else f"{number:g}"
    return f"{text} {noun}" + "s" * (number != 1)
