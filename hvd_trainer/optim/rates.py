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
LAST_SET = "lr_last_set"  # what a Trainer set last


def get_rate(group: Group) -> float:
    """The group's rate as a float, also where the optimizer holds it as a tensor."""
    return float(group["lr"])


def set_rate(group: Group, rate: float) -> None:
    """Set the group's rate; a tensor is written in place, because compiled and capturable optimizers hold on to it."""
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def scale_groups(groups: Iterable[Group], factor: float, *, from_initial: bool = False) -> None:
    """Bring every group to `factor` times its reference rate, once: what was scaled before is not scaled again.

    Args:
        groups: of one optimizer.
        factor: > 0.
        from_initial: a scheduler that was made already may have moved `lr`; the reference is what it was given then.

    Raises:
        ConfigError: a rate is negative, NaN or infinite.
    """
    groups = list(groups)
    _unshare(groups)
    for group in groups:
        check_rate(get_rate(group))
        if SCALE not in group:
            reference = group.get("initial_lr", get_rate(group)) if from_initial else get_rate(group)
            group[REFERENCE], group[SCALE] = float(reference), 1.0
        if group[SCALE] != factor:
            set_rate(group, get_rate(group) / group[SCALE] * factor)
            group[SCALE] = factor


def _unshare(groups: list[Group]) -> None:
    """A tensor of its own for each group: torch puts the very one that the user gave into all of them."""
    seen: set[int] = set()
    for group in groups:
        if isinstance(group["lr"], torch.Tensor):
            if id(group["lr"]) in seen:
                group["lr"] = group["lr"].clone()
            seen.add(id(group["lr"]))


def forget_scale_where_changed(groups: Iterable[Group]) -> None:
    """A rate that the user set since the last run of a Trainer is a new reference rate, not a scaled one."""
    for group in groups:
        if SCALE in group and LAST_SET in group and get_rate(group) != group[LAST_SET]:
            del group[SCALE], group[REFERENCE], group[LAST_SET]
