"""Pure: what a DistributedOptimizer saves of its own, beside the ordinary state of the optimizer that it holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Optional

STATE_KEY = "hvd_trainer"


@dataclass(frozen=True)
class SavedState:
    """The recipe of the first start, which a resume on other ranks keeps, and what must be the same for the same sums.

    Args:
        steps_done: optimizer steps.
        lr_scale: the factor of the rates.
        nominal_weight: what losses are divided by on their way; None: not known before the first step.
        reference_batch: in samples, a fraction as text; None: not given.
        num_ranks: that saved this.
        reduce_through: "shared" or "messages"; None in checkpoints from before there was a choice.
        node_sizes: ranks of each node; None likewise.
        rule: the state of a scaling rule that has one.
        update_by: "tensors" where each rank updated all parameters tensor by tensor though it need not from the start; else None.
    """

    steps_done: int
    lr_scale: float
    nominal_weight: Optional[float]
    reference_batch: Optional[str]
    num_ranks: int
    reduce_through: Optional[str] = None
    node_sizes: Optional[list[int]] = None
    rule: Optional[dict[str, Any]] = None
    update_by: Optional[str] = None

    def beside(self, theirs: dict[str, Any]) -> dict[str, Any]:
        """The held optimizer's state_dict with one more key, which a plain optimizer ignores when it loads it."""
        return {**theirs, STATE_KEY: asdict(self)}


def split(state_dict: dict[str, Any]) -> tuple[dict[str, Any], Optional[SavedState]]:
    """The held optimizer's part of a state_dict, and ours; None in one of a plain optimizer.

    Example:
        >>> theirs, ours = split(SavedState(3, 2.0, None, None, 2).beside({"state": {}}))
        >>> theirs, ours.steps_done, split({"state": {}})
        ({'state': {}}, 3, ({'state': {}}, None))
    """
    theirs = {key: value for key, value in state_dict.items() if key != STATE_KEY}
    ours = state_dict.get(STATE_KEY)
    if ours is None:
        return theirs, None
    known = {field.name for field in fields(SavedState)}
    return theirs, SavedState(**{name: value for name, value in ours.items() if name in known})
