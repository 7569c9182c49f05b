"""The range test of the rate, at the largest batch of the search: rules scale down from there safely, and not up."""

from __future__ import annotations

from typing import Any, Optional

from hvd_trainer.tune.runner import Run
from hvd_trainer.tune.start_points import Base
from hvd_trainer.tune.trial import Caps, Settings, TrialResult

STEPS, DOWN, UP = 45, 1e-2, 300.0  # from and to these multiples of the script's peak rate


def run(ranks: int, base: Base, largest: int) -> Run:
    """The test as a run.

    Args:
        ranks: processes.
        base: the script.
        largest: global batch.
    """
    sweep = {"lowest": DOWN * base.peak_lr, "highest": UP * base.peak_lr, "num_steps": STEPS}
    return Run(Settings(ranks, largest, base.peak_lr), Caps(), watch={"metric": "", "sweep": sweep})


def breaks_at(rates: list[float], losses: list[float]) -> Optional[float]:
    """The first rate after which the loss never came back to where it began; None where it began with no number.

    The test itself stops later: its average must rise first, and the rate goes on meanwhile.

    Example:
        >>> breaks_at([0.1, 0.2, 0.4, 0.8, 1.6], [2.3, 2.0, 2.4, 2.1, 9.0]), breaks_at([0.1, 0.2], [2.3, 9.0])
        (1.6, 0.2)
        >>> breaks_at([0.1, 0.2], [float("nan"), 9.0]) is None
        True
    """
    last = max((number for number, loss in enumerate(losses) if loss <= losses[0]), default=None)
    return None if last is None else rates[min(last + 1, len(rates) - 1)]


def read(result: Optional[TrialResult], global_batch: int) -> dict[str, Any]:
    """What it says; with "highest_rate", from which on training breaks, None where it did not."""
    sweep = None if result is None else result.end.get("sweep")
    if not sweep:
        return {"note": f"the range test failed: {result.reason if result is not None else 'the job ended before'}"}
    return {
        "global_batch": global_batch, "rates": sweep["rates"], "losses": sweep["losses"], "stopped": sweep["stopped"],
        "suggestion": sweep["suggested"], "lowest_loss_at": sweep["lowest_loss_at"], "note": sweep["note"],
        "highest_rate": breaks_at(sweep["rates"], sweep["losses"]) if sweep["stopped"] else None,
    }  # fmt: skip
