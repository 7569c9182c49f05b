"""Do N ranks compute what one computes? The losses of the first steps on the same global batches."""

from __future__ import annotations

import math
from typing import Any

from hvd_trainer.tune.runner import Run
from hvd_trainer.tune.start_points import Base
from hvd_trainer.tune.trial import Caps, Settings, TrialResult

STEPS = 5
RTOL = 1e-4  # sums in another order differ by 1e-7 a step in float32, and training enlarges that
CAUSES = (
    "batch statistics (BatchNorm) over the samples of a rank: ht.SyncBatchNorm",
    "dropout or augmentation, which draw other numbers on another number of ranks: then a difference of some per cent is right",
    "a loss that is a mean over unequal shares: return ht.Weighted(sum, count)",
    "a batch, rate or seed that the script computes from comm.size or comm.rank",
)


def run(ranks: int, base: Base) -> Run:
    """A few steps of the script's own settings.

    Args:
        ranks: processes.
        base: the script.
    """
    watch = {"metric": "", "num_losses": STEPS}
    return Run(Settings(ranks, base.global_batch, base.peak_lr), Caps(steps=STEPS), watch=watch)


def losses_of(result: TrialResult | None) -> list[float]:
    """The losses that a run wrote down; none where it failed."""
    return [] if result is None else list(result.end.get("losses") or [])


def read(losses: dict[int, list[float]], global_batch: int) -> dict[str, Any]:
    """Compare.

    Args:
        losses: ranks -> the losses of its steps; 1 and the largest number are compared.
        global_batch: that all of them had.

    Example:
        >>> found = read({1: [2.0, 1.0], 2: [2.0, 1.001]}, 64)
        >>> found["agrees"], round(found["difference"], 6), len(found["causes"])
        (False, 0.001, 4)
        >>> read({1: [2.0]}, 64)["note"]
        'not compared: it takes the losses of 1 and of more ranks'
        >>> read({1: [2.0, float("nan")], 2: [2.0, float("nan")]}, 64)["note"]
        'not compared: losses of the first steps are not finite'
    """
    known = {ranks: values for ranks, values in losses.items() if values}
    found: dict[str, Any] = {"global_batch": global_batch, "losses": {str(ranks): values for ranks, values in known.items()}, "limit": RTOL}
    most = max(known, default=1)
    if 1 not in known or most == 1:
        return {**found, "agrees": None, "note": "not compared: it takes the losses of 1 and of more ranks"}
    pairs = list(zip(known[1], known[most]))
    if not all(isinstance(loss, (int, float)) and math.isfinite(loss) for pair in pairs for loss in pair):
        return {**found, "losses": {}, "agrees": None, "note": "not compared: losses of the first steps are not finite"}
    difference = max(abs(a - b) / max(abs(a), 1e-12) for a, b in pairs)
    agrees = difference <= RTOL
    note = "" if agrees else f"{most} ranks do not compute what 1 rank does: losses differ by {difference:.2g} in the first {len(pairs)} steps"
    return {**found, "ranks": most, "difference": difference, "agrees": agrees, "causes": [] if agrees else list(CAUSES), "note": note}
