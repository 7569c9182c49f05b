"""Why a row is not in the table, and why no trial came to the target (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.start_points import FITS, LINEAR
from hvd_trainer.tune.trial import DIVERGED, SCRIPT_END

BUDGET = "the budget was spent before"
TRIALS = "--trials ended the search before"
INTERRUPTED = "the search was interrupted before"
REFUSED = "an error ended the search before"
NEARER = "a larger --budget, or a target that is nearer"


def not_measured(label: str, why: str, ranks: int, fits: Optional[int], mine: Sequence[Record]) -> str:
    """Why a row that is always wanted is not there.

    Args:
        label: of the row.
        why: the search ended.
        ranks: of the row.
        fits: samples that fit on a rank; None: not known.
        mine: all trials on so many ranks.

    Example:
        >>> not_measured(LINEAR, BUDGET, 2, None, []), not_measured(FITS, BUDGET, 2, 900, [])
        ('not measured (the budget was spent before)', 'not measured (the budget was spent before; 2 x 900 samples)')
        >>> not_measured(FITS, BUDGET, 2, None, []), not_measured(FITS, INTERRUPTED, 2, None, [])
        ('not measured (give --micro-batch)', 'not measured (the search was interrupted before)')
    """
    if label != FITS or (not fits and why in (INTERRUPTED, REFUSED)):
        return f"not measured ({why})"
    if not fits:
        return "not measured (give --micro-batch)"
    epoch = next((record.result.start["num_samples"] for record in mine if record.result.start.get("num_samples")), None)
    batch = min(ranks * fits, epoch or ranks * fits)
    if any(record.label == LINEAR and record.settings.global_batch == batch for record in mine):
        return f"the same as the {LINEAR} at batch {batch}"  # settings that have two names are run once
    return f"not measured ({why}; {ranks} x {show_count(fits, 'sample')})"


def advice(outcomes: Sequence[str]) -> str:
    """What to change where no trial came to the target: a larger budget helps only those that a cap ended.

    Example:
        >>> advice(["script ended", "script ended"]), advice(["diverged"])
        ('all ended with the script: more epochs, or a target that is nearer', 'it diverged: a lower rate in the script')
    """
    who = "all" if len(outcomes) > 1 else "it"
    ways = {SCRIPT_END: f"{who} ended with the script: more epochs, or a target that is nearer", DIVERGED: f"{who} diverged: a lower rate in the script"}
    return ways.get(outcomes[0], NEARER) if len(set(outcomes)) == 1 else NEARER
