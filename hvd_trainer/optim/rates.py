"""Reading and writing the learning rates of an optimizer's groups, and what was scaled already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from hvd_trainer.optim.scaling import check_rate

Group = dict[str, Any]
# Kept inside each param group, so that it travels with every state_dict, whoever saves and loads it:
SCALE = "lr_scale"  # the factor by which `lr` has been multiplied
REFERENCE = "reference_lr"  # the rate the user gave, for the reference batch


def get_rate(group: Group) -> float:
    """The group's rate as a float, also where the optimizer holds it as a tensor."""
    return float(group["lr"])


def set_rate(group: Group, rate: float) -> None:
    """Set the group's rate; a tensor is written in place, because compiled and capturable optimizers hold on to it."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def scale_groups(groups: Iterable[Group], factor: float) -> None:
    """Bring every group to `factor` times its reference rate, once: what was scaled before is not scaled again.

    Raises:
        ConfigError: a rate is negative, NaN or infinite.
    """
    for group in groups:
        check_rate(get_rate(group))
        if SCALE not in group:
            # A scheduler that was made already may have moved `lr`; "initial_lr" is what it was given.
            group[REFERENCE], group[SCALE] = float(group.get("initial_lr", get_rate(group))), 1.0
        if group[SCALE] != factor:
            set_rate(group, get_rate(group) / group[SCALE] * factor)
            group[SCALE] = factor
