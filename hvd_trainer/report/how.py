"""What to do about a part of the report that has no data, or too few (pure)."""

from __future__ import annotations

from hvd_trainer.amounts import show_count
from hvd_trainer.report.curves import LEAST_BATCHES, Curves
from hvd_trainer.report.facts import Facts

PHASES = "It is measured before the search, within a fifth of --budget: a larger one, and no --no-phases."
SOONER = "a larger --budget, or a target that is nearer"
TO_GET = {
    "lr_range": PHASES,
    "step_time": PHASES,
    "check": f"{PHASES} It takes more than one rank (--ranks 2).",
    "memory": f"{PHASES} Or give what is known: --micro-batch.",
    "noise": "It is measured along the first trial where a step has two gradients or more: several ranks (--ranks 2), or micro-batches in the script. Or give it: --noise-scale.",
    "prediction": "It takes a first trial that meets the target, its noise scale, and step times: several ranks, a larger --budget, and no --no-phases.",
    "finalists": "It takes a field `seed` in the script's config, a trial that meets the target, and a fifth of --budget.",
    "ranks": "Name several: --ranks 1,2.",
    "backends": "Name them: --backends mpi,gloo.",
    "trials": "The budget was over before the first one ended: a larger --budget.",
}  # fmt: skip


def too_few(facts: Facts, curves: Curves) -> dict[str, str]:
    """What is there but says little, by part: a sentence each, nothing where there is enough.

    Example:
        >>> from hvd_trainer.report.curves import curves
        >>> facts = Facts("", "", None, False, (), {}, {}, {"ranks": [{"ranks": 2, "seconds": 1.0}]})
        >>> too_few(facts, curves(facts))
        {'steps': 'There is no fit: 0 batches came to the target, and a fit needs 3. For more: a larger --budget, or a target that is nearer.', \
'step': 'There is no fit: it takes three points, at two batches or more.', 'ranks': 'Only one number of ranks was searched. Name several: --ranks 1,2.'}
    """
    found = {}
    if curves.fit is None:
        found["steps"] = f"There is no fit: {curves.why_no_fit}. For more: {SOONER}."
    elif curves.fit.reason:
        found["steps"] = f"The critical batch is undetermined: {curves.fit.reason}. Other batches would say more: a larger --budget or --largest-batch."
    if curves.step_seconds is None:
        found["step"] = "There is no fit: it takes three points, at two batches or more."
    if 0 < len(facts.trials) < LEAST_BATCHES * len(facts.ranks):
        count = len(facts.trials)
        found["trials"] = f"{show_count(count, 'trial')} in all {'are' if count > 1 else 'is'} too few to compare: {SOONER}."
    if len(facts.entries("ranks")) == 1:
        found["ranks"] = f"Only one number of ranks was searched. {TO_GET['ranks']}"
    return found
