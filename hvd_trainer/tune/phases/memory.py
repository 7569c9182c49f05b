"""The largest share of a batch that fits on a rank: a line through measured peaks, and larger batches until it is sure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import numpy as np

from hvd_trainer.amounts import show_count

FRACTION = 0.8  # of what is available, so that what is measured is not killed
SURE = 2.0  # a line is trusted up to this many times the largest measured batch
GROWTH = 4.0
HARMLESS = 0.5  # of the limit: what a line says to stay below it need not run in a job of its own
END_OF_DATA, MEMORY = "the end of the data", "memory"


def read(points: Sequence[dict[str, Any]], ranks: int, num_samples: Optional[int], available_bytes: float) -> dict[str, Any]:
    """What fits.

    Args:
        points: of `step_time.points`, of these ranks.
        ranks: on this node.
        num_samples: of an epoch, which is the largest batch there is; None: a stream.
        available_bytes: for all ranks together, what these runs took included.

    Example:
        >>> points = [{"global_batch": 2 * m, "peak_bytes": 1_000_000 + 1000 * m} for m in (100, 1000)]
        >>> found = read(points, 2, None, 25_000_000)
        >>> found["micro_batch"], found["ended_by"], found["is_sure"], next_batch(found)
        (9000, 'memory', False, 8000)
        >>> read(points, 2, 3000, 25_000_000)["ended_by"]
        'the end of the data'
    """
    limit = FRACTION * available_bytes / ranks
    known = sorted((point["global_batch"] / ranks, float(point["peak_bytes"])) for point in points if point.get("peak_bytes"))
    found: dict[str, Any] = {"ranks": ranks, "limit_bytes": None if np.isinf(limit) else int(limit), "points": [list(pair) for pair in known]}
    if len(known) < 2:
        return {**found, "micro_batch": None, "note": "not known: it takes peaks at two batches"}
    x, y = np.array(known).T
    slope = float(np.polyfit(x, y, 1)[0])
    # Near the smallest batches the start of the process is the peak: the last two points say more.
    slope = max(slope, float((y[-1] - y[-2]) / (x[-1] - x[-2])), 0.0)
    room = (limit - y[-1]) / slope if slope > 0 else np.inf
    most = x[-1] + room if room > 0 else x[-1]
    data = np.inf if num_samples is None else -(-num_samples // ranks)
    ended_by = END_OF_DATA if data <= most else MEMORY
    micro_batch = None if np.isinf(min(most, data)) else int(min(most, data))
    is_sure = micro_batch is not None and micro_batch <= SURE * known[-1][0]
    note = f"{show_count(micro_batch, 'sample')} a rank, ended by {ended_by}" if micro_batch else "no limit found"
    if not is_sure:
        note += f" (measured up to {x[-1]:.0f}, beyond that a line)"
    return {**found, "micro_batch": micro_batch, "ended_by": ended_by, "is_sure": is_sure, "bytes_per_sample": slope, "note": note}


def next_batch(found: dict[str, Any]) -> Optional[int]:
    """The global batch to measure next; None where it is known well enough, or cannot be known."""
    if found.get("micro_batch") is None or found["is_sure"]:
        return None
    largest = found["points"][-1][0]
    return int(found["ranks"] * min(GROWTH * largest, found["micro_batch"]))


def is_harmless(found: dict[str, Any]) -> bool:
    """Whether a run with as much as fits is far from being killed: the data end it, and not the memory.

    Example:
        >>> points = [{"global_batch": m, "peak_bytes": 1_000_000 + 1000 * m} for m in (100, 1000)]
        >>> [is_harmless(read(points, 1, num_samples, 25_000_000)) for num_samples in (3000, 12_000)]
        [True, False]
    """
    if not found.get("micro_batch") or found.get("limit_bytes") is None:
        return False
    batch, peak = found["points"][-1]
    return peak + found["bytes_per_sample"] * max(0.0, found["micro_batch"] - batch) < HARMLESS * found["limit_bytes"]
