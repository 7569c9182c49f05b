"""The recommended settings through each backend: seconds of a step, or why it does not start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from hvd_trainer.tune.runner import Run
from hvd_trainer.tune.trial import Caps, Settings, TrialResult

STEPS, WARM_STEPS = 30, 5


def run(settings: Settings) -> Run:
    """Enough steps for a median."""
    return Run(settings, Caps(steps=STEPS, train_s=20.0), watch={"metric": "", "warm_steps": WARM_STEPS})


def row(backend: str, result: Optional[TrialResult]) -> dict[str, Any]:
    """What came out."""
    step_s = None if result is None else result.step_s
    reason = "" if step_s else "the job ended before" if result is None else result.reason or result.outcome
    return {"backend": backend, "step_s": step_s, "reason": reason}


def sentence(rows: Sequence[dict[str, Any]]) -> str:
    """Which one.

    Example:
        >>> sentence([{"backend": "mpi", "step_s": 0.001, "reason": ""}, {"backend": "nccl", "step_s": None, "reason": "no GPU"}])
        'backend mpi: 1 ms a step; nccl does not start (no GPU)'
        >>> sentence([{"backend": "mpi", "step_s": 0.001, "reason": ""}, {"backend": "gloo", "step_s": 0.003, "reason": ""}])
        'backend mpi: 1 ms a step; gloo: 3.00 times as long'
    """
    timed = sorted((each for each in rows if each["step_s"]), key=lambda each: each["step_s"])
    if not timed:
        return "no backend starts: " + "; ".join(f"{each['backend']} ({each['reason']})" for each in rows)
    best = timed[0]
    words = [f"backend {best['backend']}: {best['step_s'] * 1000:.3g} ms a step"]
    words += [f"{each['backend']}: {each['step_s'] / best['step_s']:.2f} times as long" for each in timed[1:]]
    words += [f"{each['backend']} does not start ({each['reason']})" for each in rows if not each["step_s"]]
    return "; ".join(words)
