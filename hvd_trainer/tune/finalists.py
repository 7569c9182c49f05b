"""Which settings were best, over seeds where there are several (pure)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, Optional

from hvd_trainer.cost.policies import speed_up_caution
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.trial import Settings

SEED = "another seed"
MOST = 3  # settings
MORE_SEEDS = 2


def groups_of(records: Sequence[Record], ranks: int) -> list[list[Record]]:
    """The trials on so many ranks, those that differ in the seed alone together; the first of a group is that of the script's seed."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.settings.ranks == ranks:
            found.setdefault(record.settings.without_seed.key, []).append(record)
    return [sorted(group, key=lambda record: record.settings.seed is not None) for group in found.values()]


def median_s(group: Sequence[Record]) -> float:
    """Seconds to the target, the median over seeds; infinite where half of them or more did not come to it."""
    return statistics.median(record.result.to_target_s for record in group)


def best_of(records: Sequence[Record], ranks: int) -> Optional[Record]:
    """The trial on so many ranks that was soonest at the target; None where none was.

    Where some were run with other seeds, one of those, by the median over its seeds: the first of many trials is lucky.
    """
    groups = [group for group in groups_of(records, ranks) if math.isfinite(group[0].result.to_target_s)]
    repeated = [group for group in groups if len(group) > 1 and math.isfinite(median_s(group))]
    best = min(repeated or groups, key=median_s, default=None)
    return None if best is None else best[0]


def candidates(records: Sequence[Record], ranks: int) -> list[Record]:
    """The best few, that are to be run again."""
    groups = [group for group in groups_of(records, ranks) if math.isfinite(group[0].result.to_target_s)]
    return [group[0] for group in sorted(groups, key=lambda group: group[0].result.to_target_s)[:MOST]]


def repetitions(records: Sequence[Record], ranks: int, seed: int) -> list[Settings]:
    """What to run, all of one seed before the next; what was run is left out.

    Args:
        records: all trials.
        ranks: of the finalists.
        seed: the script's own.
    """
    known = {record.settings.key for record in records}
    again = [record for record in records if record.label == SEED and record.settings.ranks == ranks]
    # After an interruption the same finalists, whatever came out of their first repetitions.
    chosen = [group[0] for group in groups_of(records, ranks) if len(group) > 1] if again else []
    chosen = (chosen + [record for record in candidates(records, ranks) if record not in chosen])[:MOST]
    wanted = [with_seed(record.settings, seed + more) for more in range(1, MORE_SEEDS + 1) for record in chosen]
    return [settings for settings in wanted if settings.key not in known]


def with_seed(settings: Settings, seed: int) -> Settings:
    """The same with a seed."""
    return Settings(settings.ranks, settings.global_batch, settings.peak_lr, settings.optimizer, settings.warmup_samples, seed)


def as_rows(records: Sequence[Record], ranks: Sequence[int]) -> list[dict[str, Any]]:
    """The finalists, for a report: the best first on each number of ranks."""
    rows = []
    for number in sorted(ranks):
        repeated = [group for group in groups_of(records, number) if len(group) > 1]
        for group in sorted(repeated, key=median_s):
            seconds = [record.result.to_target_s for record in group]
            start = group[0].result.start
            rows.append({
                "ranks": number, "global_batch": start.get("global_batch"), "peak_lr": start.get("peak_lr"), "optimizer": start.get("optimizer"),
                "seeds": [record.settings.seed for record in group], "seconds": [_finite(value) for value in seconds],
                "steps": [record.result.steps for record in group], "outcomes": [record.result.outcome for record in group],
                "median_s": _finite(median_s(group)),
            })  # fmt: skip
    return rows


def worth_of_ranks(records: Sequence[Record], ranks: Sequence[int]) -> list[dict[str, Any]]:
    """What each number of ranks is worth: the best time on it, against that on the fewest; how many trials each rests on."""
    rows: list[dict[str, Any]] = []
    for number in sorted(ranks):
        best = best_of(records, number)
        group = next((g for g in groups_of(records, number) if best in g), None)
        seconds = None if group is None else median_s(group)
        first = rows[0] if rows else None
        speed_up = first["seconds"] / seconds if first and first["seconds"] and seconds else 1.0 if seconds and first is None else None
        efficiency = speed_up * first["ranks"] / number if speed_up and first else speed_up
        row = {"ranks": number, "seconds": seconds, "speed_up": speed_up, "efficiency": efficiency, "trials": len(group or ())}
        caution = speed_up_caution(speed_up, number / first["ranks"], [first["trials"], row["trials"]]) if first and speed_up else ""
        rows.append({**row, "caution": caution} if caution else row)
    return rows


def _finite(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None
