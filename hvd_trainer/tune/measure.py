"""The phases before the search: one job for each number of ranks, kept in the ledger, within a share of the budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.tune.ledger import Ledger
from hvd_trainer.tune.memory_limit import available_bytes
from hvd_trainer.tune.phases import check, lr_range, memory, noise, predict, step_time
from hvd_trainer.tune.runner import Refused, Run, TrialRunner
from hvd_trainer.tune.start_points import Base
from hvd_trainer.tune.trial import FAILED, START_S, Caps, Settings, TrialResult

SHARE = 0.2  # of the budget, for all of these phases
LEAST_S = 2.0  # of steps in a job, else its start is not worth it
SMALLEST = 16  # batch of the step times, where the script's is larger


@dataclass(frozen=True)
class Measurer:
    """Runs what the phases ask for, once.

    Args:
        runner: starts jobs.
        ledger: keeps what they found.
        budget_s: of the whole search.
        on_change: called with what is running now.
    """

    runner: TrialRunner
    ledger: Ledger
    budget_s: float
    on_change: Callable[[str], None]

    @property
    def spent_s(self) -> float:
        """Seconds of all phases so far."""
        return sum(found.get("wall_s", 0.0) for found in self.ledger.phases().values())

    def job(self, name: str, runs: list[Run], known: TrialResult, shown: str, backend: str = "") -> tuple[list[Optional[TrialResult]], float]:
        """One job and its seconds; what is not in the budget any more is the caller's affair."""
        self.on_change(shown)
        began_s = time.monotonic()
        wall_s = max(LEAST_S, SHARE * self.budget_s) + START_S
        results = self.runner.run_many(runs, known, wall_s, backend)
        self.on_change("")
        return results, time.monotonic() - began_s

    def room_s(self, start_s: float) -> float:
        """Seconds of steps that one more job may take; <= 0: there is no room for it."""
        left_s = SHARE * self.budget_s - self.spent_s - start_s
        return left_s if left_s >= LEAST_S else 0.0

    def ranks(self, ranks: int, base: Base, known: TrialResult, largest: int, *, sweeps: bool, checks: bool) -> dict[str, Any]:
        """Check, step times and range test on so many ranks: {"losses", "points", "sweep", "wall_s", "note"}.

        Args:
            ranks: processes.
            base: the script.
            known: its first trial.
            largest: batch of the search.
            sweeps: whether the range test is part of it.
            checks: whether the identity check is.
        """
        name = f"ranks {ranks}"
        kept = self.ledger.phase(name)
        if kept is not None:
            return kept
        room_s = self.room_s(known.start_s)
        if not room_s:
            return {"note": f"check, step times and range test on {show_count(ranks, 'rank')}: left out, {SHARE:.0%} of the budget are too little for a job"}
        sizes = step_time.batches(ranks, min(base.global_batch, SMALLEST), largest)
        first = [check.run(ranks, base)] if checks else []
        timed = step_time.runs(ranks, base, sizes, room_s / (3 * len(sizes)))
        last = [lr_range.run(ranks, base, largest)] if sweeps else []
        results, wall_s = self.job(name, [*first, *timed, *last], known, f"check and step times, {show_count(ranks, 'rank')}")
        found: dict[str, Any] = {"wall_s": wall_s, "points": step_time.points(results[len(first) : len(first) + len(timed)]), "note": ""}
        if first:
            found["losses"] = check.losses_of(results[0])
        if last:
            found["sweep"] = lr_range.read(results[-1], largest)
        for run, result in zip([*first, *timed, *last], results):
            if result is not None and result.outcome == FAILED:
                found["note"] = f"{show_count(ranks, 'rank')}, batch {run.settings.global_batch}: {result.reason}"
        self.ledger.keep_phase(name, found)
        return found

    def one_rank(self, base: Base, known: TrialResult) -> dict[str, Any]:
        """The identity check's other side, where one rank is no part of the search."""
        kept = self.ledger.phase("one rank")
        if kept is not None:
            return kept
        if not self.room_s(known.start_s):
            return {"losses": [], "note": ""}
        try:
            results, wall_s = self.job("one rank", [check.run(1, base)], known, "check, 1 rank")
            found = {"losses": check.losses_of(results[0]), "wall_s": wall_s, "note": ""}
        except Refused as error:  # what is searched may do all the same
            found = {"losses": [], "note": f"1 rank: {error.given}"}
        self.ledger.keep_phase("one rank", found)
        return found

    def memory(self, ranks: int, base: Base, known: TrialResult, points: list[dict[str, Any]]) -> dict[str, Any]:
        """What fits on a rank: from the step times' peaks, and from larger batches in jobs of their own while there is room."""
        name = f"memory {ranks}"
        kept = self.ledger.phase(name)
        if kept is not None:
            return kept
        if not points:
            return {"ranks": ranks, "micro_batch": None, "note": "not measured"}
        points, spent_s, available = list(points), 0.0, available_bytes()
        found = memory.read(points, ranks, base.num_samples, available)
        while (batch := memory.next_batch(found)) is not None and self.room_s(known.start_s + spent_s) > 0:
            run = Run(Settings(ranks, batch, base.peak_lr), Caps(steps=2, train_s=30.0), watch={"metric": ""})
            results, wall_s = self.job(name, [run], known, f"memory: batch {batch}, {show_count(ranks, 'rank')}")
            spent_s += wall_s
            more = step_time.points(results)
            if not more or not more[0]["peak_bytes"]:
                fits = int(points[-1]["global_batch"] / ranks)
                found = {**found, "micro_batch": fits, "is_sure": True, "ended_by": memory.MEMORY,
                         "note": f"{show_count(fits, 'sample')} a rank; batch {batch} failed: {results[0].reason if results[0] else ''}"}  # fmt: skip
                break
            points += more
            found = memory.read(points, ranks, base.num_samples, available)
        found["wall_s"] = spent_s
        self.ledger.keep_phase(name, found)
        return found

    def prediction(
        self, base: Base, defaults: Mapping[int, TrialResult], ranks: tuple[int, ...], largest: int, given_noise: Optional[float], micro_batch: Optional[int]
    ) -> dict[str, Any]:  # fmt: skip
        """All phases before the search: what the report shows as "phases".

        Args:
            base: the script.
            defaults: its trial as it is on each number of ranks; on the most there is one.
            ranks: numbers of them.
            largest: batch of the search.
            given_noise: --noise-scale.
            micro_batch: --micro-batch.
        """
        most = max(ranks)
        known = defaults[most]
        raw = {number: self.ranks(number, base, defaults.get(number, known), largest, sweeps=number == most, checks=most > 1 and number in (1, most)) for number in sorted(ranks, reverse=True)}
        losses = {number: found.get("losses", []) for number, found in raw.items()}
        notes = [found["note"] for found in raw.values() if found["note"]]
        if most > 1 and 1 not in raw:
            alone = self.one_rank(base, known)
            losses[1], notes = alone["losses"], [*notes, *([alone["note"]] if alone.get("note") else [])]
        phases: dict[str, Any] = {"check": check.read(losses, base.global_batch)}
        phases["memory"] = {}
        for number, found in raw.items():
            if micro_batch is not None:
                phases["memory"][str(number)] = {"ranks": number, "micro_batch": micro_batch, "note": "as given by --micro-batch"}
            else:
                phases["memory"][str(number)] = self.memory(number, base, defaults.get(number, known), found.get("points", []))
        # The script as it is was timed on every number of ranks, also where there was no room for more.
        points = [point for found in raw.values() for point in found.get("points", [])] + step_time.points(list(defaults.values()))
        fitted = step_time.fit(points)
        phases["step_time"] = {"points": points, "fit": {} if fitted is None else fitted.as_rows()}
        phases["lr_range"] = raw[most].get("sweep", {"note": "not measured"})
        phases["noise"] = noise.read(known, given_noise)
        phases["prediction"] = predict.read(base, known, phases["noise"], fitted, ranks, largest, phases["lr_range"].get("highest_rate"))
        named = {"check against 1 rank": phases["check"], "range test of the rate": phases["lr_range"], "noise scale": phases["noise"], "prediction": phases["prediction"]}
        named.update({f"what fits on each of {number} ranks" if number != "1" else "what fits on 1 rank": found for number, found in phases["memory"].items()})
        phases["notes"] = notes + [f"{name}: {part['note']}" for name, part in named.items() if part.get("note")]
        return phases
