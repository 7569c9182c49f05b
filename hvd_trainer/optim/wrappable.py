"""Which optimizers a DistributedOptimizer can hold, and what nobody can do with them then; each refusal says what to do instead."""

from __future__ import annotations

from typing import Any

import torch

from hvd_trainer.errors import ConfigError


def check_wrappable(optimizer: Any, wrapper: type) -> None:
    """Raise ConfigError unless it is a torch optimizer that takes one gradient a step, and no `wrapper` itself."""
    if isinstance(optimizer, wrapper) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"DistributedOptimizer({type(optimizer).__name__})",
            "a torch optimizer that is not wrapped yet",
            "ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), comm)",
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigError(
            "DistributedOptimizer(LBFGS)",
            "an optimizer that takes one gradient a step",
            "LBFGS evaluates the loss again inside step(closure), on this rank alone; use SGD, AdamW, ...",
        )
    for number, group in enumerate(optimizer.param_groups):
        if not isinstance(group.get("lr"), (int, float, torch.Tensor)):
            raise ConfigError(
                f"{type(optimizer).__name__} has lr={group.get('lr')!r} in param group {number}",
                "a number or a tensor: it is what scaling and warm-up multiply",
                'give the optimizer an "lr" (1.0 for one that finds its own rate) and lr_scaling="none"',
            )


def check_no_scheduler(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Raise ConfigError where a torch scheduler was made on the optimizer whose rates are about to be multiplied by `factor`."""
    if factor != 1 and hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        raise ConfigError(
            "a learning-rate scheduler was made on this optimizer before it was wrapped; it would undo the scaling",
            f"a scheduler made on the wrapped optimizer, whose rate is already multiplied by {factor:g}",
            "wrap first: opt = ht.DistributedOptimizer(...), then StepLR(opt, ...); or give it to ht.Trainer(schedule=...)",
        )


def closure_refused() -> ConfigError:
    """The error of `step(closure)`."""
    return ConfigError(
        "step(closure)",
        "step() without a closure",
        "a closure evaluates the loss again inside the step, after the averaging: call opt.backward(...) and then "
        "opt.step(); optimizers that need closures (LBFGS) are not supported",
    )


def copy_refused() -> TypeError:
    """The error of `copy.deepcopy` and pickle."""
    return TypeError("a DistributedOptimizer cannot be copied or pickled: save opt.state_dict(), and wrap a copy of opt.optimizer")
