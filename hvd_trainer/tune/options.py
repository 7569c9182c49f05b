"""What a search is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Options:
    """What is searched.

    Args:
        ranks: numbers of ranks, each with its own recommendation.
        budget_s: seconds for all trials and phases, those before an interruption included.
        optimizers: names; (): the script's.
        micro_batch: samples that fit on a rank; None: measured.
        noise_scale: in samples; None: measured.
        largest_batch: None: from the script's batch and data.
        max_trials: None: as many as the budget allows; repetitions with other seeds are not counted.
        backends: to compare at the end.
        phases: whether to measure before searching.
    """

    ranks: tuple[int, ...]
    budget_s: float
    optimizers: tuple[str, ...] = ()
    micro_batch: Optional[int] = None
    noise_scale: Optional[float] = None
    largest_batch: Optional[int] = None
    max_trials: Optional[int] = None
    backends: tuple[str, ...] = ()
    phases: bool = True
