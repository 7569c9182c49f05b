"""Steps and seconds to the target for each batch and number of ranks, from one run, its noise scale and the step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from hvd_trainer.cost.step_seconds import StepSeconds
from hvd_trainer.cost.steps_to_target import from_noise
from hvd_trainer.tune.start_points import Base, middle_rate
from hvd_trainer.tune.trial import MET, TrialResult

PREDICTED, EXTRAPOLATED, TOO_LONG = "predicted", "extrapolated", "longer than the script"
ROOM = 0.8  # of the script's length may be filled by a prediction, for another seed may take longer


def read(
    base: Base, first: TrialResult, noise: dict[str, Any], fitted: Optional[StepSeconds], ranks: Sequence[int], largest: int, highest_rate: Optional[float]
) -> dict[str, Any]:
    """The table.

    Args:
        base: the script.
        first: its run to the target.
        noise: of `noise.read`.
        fitted: of `step_time.fit`; on ranks without measured batches it is extrapolated from others.
        ranks: numbers of them.
        largest: batch.
        highest_rate: no rate is above it; None: not known.

    Returns:
        {"rows": [...], "best": {ranks: row}}, or {"note": why there is none}.
    """
    if noise["noise_scale"] is None:
        return {"rows": [], "best": {}, "note": f"none, the noise scale is {noise['note'].partition(';')[0]}"}
    if first.outcome != MET:
        return {"rows": [], "best": {}, "note": f"none, the script's own run did not come to the target ({first.outcome})"}
    if fitted is None:
        return {"rows": [], "best": {}, "note": "none, no step times were measured"}
    low, high = noise["low"], noise["high"]
    interval = (low, high) if low is not None and high is not None and math.isfinite(high) else (None, None)
    curve = from_noise(base.global_batch, first.steps, noise["noise_scale"], *interval)
    most_samples = (first.start.get("total_steps") or math.inf) * base.global_batch
    rows, best = [], {}
    for number in sorted(ranks):
        mine = [row(base, curve, number, batch, noise["noise_scale"], fitted, highest_rate, most_samples) for batch in _batches(base, number, largest)]
        rows += mine
        allowed = [each for each in mine if TOO_LONG not in each["labels"]]
        if allowed:
            best[str(number)] = min(allowed, key=lambda each: each["seconds"])
    return {"rows": rows, "best": best, "critical_batch": curve.critical_batch, "note": ""}


def row(
    base: Base, curve: Any, ranks: int, batch: int, noise_scale: float, fitted: StepSeconds, highest_rate: Optional[float], most_samples: float
) -> dict[str, Any]:
    """One row."""
    step_s = fitted(ranks, batch)
    steps = curve.steps(batch)
    interval = curve.interval(batch)
    labels = [EXTRAPOLATED if fitted.is_extrapolated(ranks, batch) else PREDICTED]
    if steps * batch > ROOM * most_samples:
        labels.append(TOO_LONG)
    return {
        "ranks": ranks, "global_batch": batch, "peak_lr": min(middle_rate(base, batch, None, noise_scale), highest_rate or math.inf),
        "steps": steps, "steps_low": interval and interval[0], "steps_high": interval and interval[1], "step_s": step_s,
        "seconds": steps * step_s, "labels": labels,
    }  # fmt: skip


def _batches(base: Base, ranks: int, largest: int) -> list[int]:
    """Two to an octave, multiples of the ranks, and the script's own."""
    smallest = max(ranks, min(base.global_batch, largest) / 8)
    octaves = math.log2(largest / smallest) if largest > smallest else 0.0
    found = {max(1, round(smallest * 2 ** (half / 2) / ranks)) * ranks for half in range(int(2 * octaves) + 1)}
    return sorted({batch for batch in found if batch <= largest} | {base.global_batch})
