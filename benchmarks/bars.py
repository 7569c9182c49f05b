"""How fast is fast enough, and whether a record says so (pure).

A bar counts as met when even the worst round reaches it, as missed when even the best does not, and else as lying within
the spread. Beside ours stands what a step without any communication would reach in its place: where that misses the bar in every
round, the machine's compute decides, and not what libraries add (only a divided update could be faster still).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from hvd_trainer.bench import stats
from hvd_trainer.bench.stats import Spread, significant

OURS, LIMIT, DDP, BEST = "ours-mpi", "compute", "ddp-gloo", "hvd-best"
DDP_MPIRUN = "ddp-gloo-mpirun"
DEFAULTS = ("hvd-mpi", "hvd-gloo")
# workload: compute-only time / ours; then how many times as fast as Horovod's defaults, its best settings, DDP.
STEP = {"mlp": (1.10, 5.0, 2.5, 6.0), "cnn": (0.98, 1.15, 1.02, 1.15), "transformer": (0.98, 1.3, 1.03, 1.05), "wide": (1.0, 1.7, 1.3, 1.5)}
# The same through engine horovod, each with the same settings on both sides.
THROUGH_HOROVOD = (("ours-horovod-mpi", "hvd-mpi", 1.05), ("ours-horovod-gloo", "hvd-gloo", 1.05), ("ours-horovod-best", "hvd-best", 1.0))
RAW_AT_1_KB = 2.0
COST_WITHIN, TENSORS_WITHIN = 3.0, 1.3


@dataclass(frozen=True)
class Verdict:
    """One bar.

    Args:
        what: the sentence.
        bar: what is asked for.
        found: what was measured.
        at_least: whether more is better.
        reach: the same for compute-only in the place of ours, where that bounds it.
    """

    what: str
    bar: float
    found: Spread
    at_least: bool = True
    reach: Optional[Spread] = None

    @property
    def says(self) -> str:
        """ "met", "missed" or "within the spread"; and whether compute-only misses it, too.

        Example:
            >>> [Verdict("", 1.0, Spread(1.1, low, high)).says for low, high in ((1.05, 1.2), (0.9, 1.2), (0.8, 0.9))]
            ['met', 'within the spread', 'missed']
            >>> Verdict("", 2.0, Spread(1.5, 1.4, 1.6), at_least=False).says
            'met'
            >>> Verdict("", 6.0, Spread(2.5, 2.4, 2.6), reach=Spread(2.6, 2.5, 2.7)).says
            'missed, by compute-only too'
        """
        says = self._of(self.found)
        return says if says == "met" or self.reach is None or self._of(self.reach) != "missed" else f"{says}, by compute-only too"

    def _of(self, found: Spread) -> str:
        low, high = (found.low, found.high) if self.at_least else (-found.high, -found.low)
        bar = self.bar if self.at_least else -self.bar
        return "met" if low >= bar else "missed" if high < bar else "within the spread"

    @property
    def asks(self) -> str:
        """The bar with its direction."""
        return f"{'at least' if self.at_least else 'at most'} {significant(self.bar)}"


def of_steps(record: Mapping[str, Any]) -> list[Verdict]:
    """The bars that a record of steps can answer."""
    found = []
    for workload, (limit, defaults, best, ddp) in STEP.items():
        times = record["round_ms"].get(workload, {})
        if OURS not in times:
            continue
        ours = times[OURS]
        if LIMIT in times:
            found.append(Verdict(f"{workload}: compute-only / {OURS}", limit, stats.ratios(times[LIMIT], ours)))
        here = [name for name in DEFAULTS if name in times]
        if here:
            better = min(here, key=lambda name: stats.over_rounds(times[name]).mid)
            found.append(against(workload, times, better, defaults, " (the better of the defaults)"))
        for name, bar in ((BEST, best), (DDP, ddp)):
            if name in times:
                found.append(against(workload, times, name, bar))
        for mine, theirs, bar in THROUGH_HOROVOD:
            if mine in times and theirs in times:
                found.append(Verdict(f"{workload}: {theirs} / {mine}", bar, stats.ratios(times[theirs], times[mine])))
        memory = record.get("memory", {}).get(workload, {})
        if OURS in memory and DDP in memory:
            reach = over_ranks(memory[LIMIT], memory[DDP]) if LIMIT in memory else None
            found.append(Verdict(f"{workload}: peak PSS of {OURS} / {DDP}'s", 1.0, over_ranks(memory[OURS], memory[DDP]), at_least=False, reach=reach))
    return found


def against(workload: str, times: Mapping[str, Sequence[float]], other: str, bar: float, note: str = "") -> Verdict:
    """How many times as fast as another column ours is."""
    reach = stats.ratios(times[other], times[LIMIT]) if LIMIT in times else None
    return Verdict(f"{workload}: {other}{note} / {OURS}", bar, stats.ratios(times[other], times[OURS]), reach=reach)


def over_ranks(mine: Sequence[Mapping[str, int]], theirs: Sequence[Mapping[str, int]]) -> Spread:
    """The ratio of the largest ranks' peaks; it was measured once, so it has no spread."""
    ratio = max(rank["peak_pss_bytes"] for rank in mine) / max(rank["peak_pss_bytes"] for rank in theirs)
    return Spread(ratio, ratio, ratio)


def of_allreduces(record: Mapping[str, Any]) -> list[Verdict]:
    """1 KB through our engine beside raw MPI."""
    times = record["round_ms"].get("1024", {})
    if "mpi" not in times or "raw-mpi" not in times:
        return []
    return [Verdict("allreduce of 1 KB: engine mpi / raw mpi4py", RAW_AT_1_KB, stats.ratios(times["mpi"], times["raw-mpi"]), at_least=False)]


def of_sweep(record: Mapping[str, Any]) -> list[Verdict]:
    """Cost for each parameter from 10^5 to 10^8, and 10 against 1,000 tensors.

    The cost is what ours takes more than compute-only. What is judged is how far it grows beyond that of the smallest model: a
    large one may have next to none, or less than none, because the update is divided. Where the smallest has none, there is nothing
    to compare with.
    """
    found = []
    costs = {cost["num_params"]: cost["ns_per_param"] for name, cost in record["cost_over_compute"].items() if name.startswith("params-")}
    first = costs[min(costs)] if costs else 0.0
    if first > 0 and len(costs) > 1:
        ratio = max(costs.values()) / first
        found.append(Verdict(f"largest cost a parameter / that of {min(costs):,}", COST_WITHIN, Spread(ratio, ratio, ratio), at_least=False))
    times = record["round_ms"]
    if all(OURS in times.get(name, {}) and LIMIT in times[name] for name in ("tensors-10", "tensors-1000")):
        few, many = times["tensors-10"], times["tensors-1000"]
        rounds = zip(many[OURS], few[OURS], many[LIMIT], few[LIMIT])
        ratios = [(a / b) / (c / d) for a, b, c, d in rounds]
        found.append(Verdict("1,000 tensors / 10: ours beside compute-only", TENSORS_WITHIN, stats.over_rounds(ratios), at_least=False))
    return found


def verdicts(records: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """All that the records of one run can answer."""
    judges = {"step": of_steps, "allreduce": of_allreduces, "sweep": of_sweep}
    return [verdict for part, judge in judges.items() if part in records for verdict in judge(records[part])]
