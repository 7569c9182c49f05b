"""Why an optimizer's update cannot be made in flat buffers, in words."""

from __future__ import annotations

import torch

from hvd_trainer.optim.layout import is_dense
from hvd_trainer.optim.pieces import ELEMENTWISE, LAYERWISE


def refusal(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> str:
    """Why the update cannot be made in flat buffers; "" where it can.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(4))
        >>> refusal(torch.optim.SGD([w], lr=0.1), [w]), refusal(torch.optim.LBFGS([w]), [w])
        ('', 'LBFGS is not known to work element by element')
    """
    name = type(optimizer).__name__
    if type(optimizer) not in ELEMENTWISE + LAYERWISE:
        return f"{name} is not known to work element by element"
    changing = refusal_while_running(optimizer)
    if changing:
        return changing
    if any(group.get("differentiable") or group.get("capturable") for group in optimizer.param_groups):
        return f"{name} with differentiable or capturable"
    if any(not (param.is_floating_point() and is_dense(param)) for param in params):
        return "a parameter is complex or has holes in memory"
    return ""


def refusal_while_running(optimizer: torch.optim.Optimizer) -> str:
    """What of `refusal` can change from step to step."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "a step hook must see whole gradients"
    own_step = vars(optimizer).get("step")
    if own_step is not None and not hasattr(own_step, "_wrapped_by_lr_sched"):
        return f"{type(optimizer).__name__}.step was replaced"
    return ""
