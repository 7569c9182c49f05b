"""The search: the script as it is, what is measured and predicted, rows that are always there, Optuna around them, finalists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.errors import ConfigError
from hvd_trainer.tune import finalists
from hvd_trainer.tune.finalists import SEED, best_of
from hvd_trainer.tune.lane import ROW_AT, Item, Lane
from hvd_trainer.tune.ledger import ROWS as TRIALS
from hvd_trainer.tune.ledger import Ledger, Record
from hvd_trainer.tune.measure import Measurer
from hvd_trainer.tune.options import Options
from hvd_trainer.tune.phases import backends
from hvd_trainer.tune.phases.memory import is_harmless
from hvd_trainer.tune.runner import Run, TrialRunner
from hvd_trainer.tune.side_by_side import SideBySide
from hvd_trainer.tune.space import Space
from hvd_trainer.tune.start_points import DEFAULT, FITS, PREDICTED, Base, rows
from hvd_trainer.tune.step_times import slowness, with_fits
from hvd_trainer.tune.trial import MET, START_S, Caps, Settings, TrialResult
from hvd_trainer.tune.turns import FIRST, PREDICTION, ROWS, SAMPLES, Standing, Turn, next_turn

MOST_TOGETHER = 4  # trials in one job
LIKELY = 2.0  # times the best: what a trial takes before anything is known of it
RESERVE = 0.2  # of the budget, for the finalists' other seeds


class Search:
    """Runs trials until the budget is spent; started again on the same ledger, it goes on.

    Args:
        runner: starts trials.
        ledger: where they are kept.
        options: what is searched.
        on_change: called with what is running now ("" for nothing), before and after each job.
        slots: to run several trials at the same time; None: one after another.
    """

    def __init__(
        self, runner: TrialRunner, ledger: Ledger, options: Options, on_change: Callable[[str], None] = lambda running: None, slots: Optional[SideBySide] = None
    ) -> None:
        self._ledger, self._options, self._on_change = ledger, options, on_change
        self._slots = slots or SideBySide([runner])
        self._measurer = Measurer(runner, ledger, options.budget_s, on_change)
        self._measured: dict[str, Any] = {}
        self._fitted: list[Record] = []
        self._seed: Optional[int] = None  # the script's own; None: its config has no such field

    @property
    def records(self) -> list[Record]:
        """What was run, the oldest first."""
        found = self._ledger.records()
        if len(found) != len(self._fitted):  # a fit takes longer than all other looks at the ledger
            self._fitted = with_fits(found, self._measured.get("step_time", {}).get("points", ()))
        return list(self._fitted)

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self._options.budget_s - sum(record.result.budget_s for record in self.records) - self._measurer.spent_s

    @property
    def at_trials(self) -> frozenset[int]:
        """The numbers of ranks that --trials has ended."""
        numbers, records = sorted(self._options.ranks, reverse=True), self.records
        most = {ranks: self._trials_for(index, len(numbers)) for index, ranks in enumerate(numbers)}
        return frozenset(ranks for ranks, limit in most.items() if limit is not None and Lane(ranks, self._ledger).count(records) >= limit)

    @property
    def phases(self) -> dict[str, Any]:
        """What was measured, predicted and compared, as plain values."""
        records, ranks = self.records, self._options.ranks
        compared = self._ledger.phase("backends") or {}
        found = {"finalists": finalists.as_rows(records, ranks), "backends": compared.get("rows", []), "ranks": finalists.worth_of_ranks(records, ranks)}
        notes = list(self._measured.get("notes", []))
        if self._measured and self._seed is None:
            notes.append("finalists: each trial has one seed, for the config has no field `seed`")
        if compared:
            notes.append(compared["note"])
        return {**self._measured, **found, "notes": notes}

    def run(self) -> list[Record]:
        """Search.

        Returns:
            All finished trials.

        Raises:
            ConfigError: the script cannot be tuned, or fails as it is.
            KeyboardInterrupt: what was finished is kept; the trial under way will run again.
        """
        options = self._options
        numbers = sorted(options.ranks, reverse=True)
        most = [self._trials_for(index, len(numbers)) for index in range(len(numbers))]
        # The script as it is on all numbers of ranks, before anything is measured: that every one is known to train, and how long it takes.
        self._in_turns([Lane(ranks, self._ledger, limit, [(DEFAULT, Settings(ranks))]) for ranks, limit in zip(numbers, most)], 0.0)
        known = self._known
        if known is None:
            return self.records
        base = Base.of(known.start)
        seed = known.config["config"].get(known.config["fields"].get("seed", ""))
        self._seed = seed if isinstance(seed, int) and not isinstance(seed, bool) else None
        largest = options.largest_batch or base.largest_batch()
        if options.phases:
            self._measured = self._measurer.prediction(base, self._defaults(), options.ranks, largest, options.noise_scale, options.micro_batch)
        reserve_s = 0.0 if self._seed is None else RESERVE * options.budget_s
        self._in_turns([self._lane(ranks, limit, base, largest) for ranks, limit in zip(numbers, most)], reserve_s)
        self._repeat_best(numbers)
        self._compare_backends(numbers[0], known)
        return self.records

    def _trials_for(self, index: int, parts: int) -> Optional[int]:
        most = self._options.max_trials
        return None if most is None else most // parts + (index < most % parts)

    def _lane(self, ranks: int, max_trials: Optional[int], base: Base, largest: int) -> Lane:
        """All that one number of ranks is to run."""
        options, known = self._options, self._known
        noise_scale = self._measured.get("noise", {}).get("noise_scale") if self._measured else options.noise_scale
        fits, fits_safely = self._fits(ranks)
        best = self._measured.get("prediction", {}).get("best", {}).get(str(ranks))
        highest_rate = self._measured.get("lr_range", {}).get("highest_rate")
        wanted = [(DEFAULT, Settings(ranks))]
        if best is not None:
            wanted.append((PREDICTED, Settings(ranks, best["global_batch"], best["peak_lr"])))
        always = rows(base, ranks, fits, noise_scale, largest)
        # Where it cannot be killed it is in the job of the others, and there even if the budget is small.
        wanted += sorted(always, key=lambda row: row[0] != FITS) if fits_safely else always
        # Of a stream nobody knows what share of an epoch a warm-up is.
        warmup = known.config["fields"].get("warmup")
        warms_up, samples = warmup is not None and (base.num_samples is not None or warmup != "warmup_epochs"), self._samples_to_target(base)
        spaces = [
            Space(ranks, base, name, noise_scale, largest, warms_up, samples, best and best["global_batch"], highest_rate) for name in options.optimizers or (None,)
        ]
        return Lane(ranks, self._ledger, max_trials, wanted, (PREDICTED,) if fits_safely else (PREDICTED, FITS), spaces)

    @property
    def _known(self) -> Optional[TrialResult]:
        """The first trial, which says how the script's fields are called; None: it is still to be run.

        Raises:
            ConfigError: it failed before it trained.
        """
        ranks = max(self._options.ranks)
        first = self._ledger.find(Settings(ranks))
        if first is not None and not first.result.start:
            raise ConfigError(
                f"the script fails with its own settings on {show_count(ranks, 'rank')}: {first.result.reason}\n{first.result.last_lines}",
                "a script that trains",
                f"hvd-trainer launch -np {ranks} ... shows the whole output; then start with another --storage",
            )
        return None if first is None else first.result

    def _defaults(self) -> dict[int, TrialResult]:
        """The script as it is, on each number of ranks where it trained: `lr_scaling=comm.size` is another number on each."""
        found = {ranks: self._ledger.find(Settings(ranks)) for ranks in self._options.ranks}
        return {ranks: record.result for ranks, record in found.items() if record is not None and record.result.start}

    def _fits(self, ranks: int) -> tuple[Optional[int], bool]:
        """The samples that fit on a rank, and whether trying them is harmless; measured on other ranks where not on these."""
        if not self._measured:
            return self._options.micro_batch, False
        memory = self._measured.get("memory", {})
        known = [memory[number] for number in (str(ranks), *memory) if memory.get(number, {}).get("micro_batch")]
        return (known[0]["micro_batch"], is_harmless(known[0])) if known else (None, False)

    def _in_turns(self, lanes: Sequence[Lane], reserve_s: float) -> None:
        """Run what the lanes have, until they are done or the budget is spent; only what is sampled leaves the reserve alone.

        A small budget is better spent on settings that were never tried than on other seeds of the first.
        """
        by_ranks = {lane.ranks: lane for lane in lanes}
        while True:
            records = self.records
            standings = [self._standing(lane, records) for lane in lanes]
            sampling = all(standing.stage >= SAMPLES for standing in standings)
            turn = next_turn(standings, self.left_s - (reserve_s if sampling else 0.0))
            if turn is None:
                return
            self._run(by_ranks[turn.ranks].items(records, self._at_once(turn)), turn.room_s)

    def _standing(self, lane: Lane, records: Sequence[Record]) -> Standing:
        stage, best = lane.stage(records), best_of(records, lane.ranks)
        least_s = 0.0 if best is None else best.result.to_target_s  # what has no time to get as far as the best says nothing
        return Standing(lane.ranks, stage, lane.spent_s(records), self._start_s() + least_s)

    def _start_s(self) -> float:
        return max(0.0, min((record.result.start_s for record in self.records if record.result.start_s), default=0.0))

    def _at_once(self, turn: Turn) -> int:
        """How many trials to ask for: as many as take no longer than the start of their job, for each slot.

        Optuna learns nothing between those of one job.
        """
        best, start_s = best_of(self.records, turn.ranks), self._start_s()
        if best is None or not start_s or turn.stage in (FIRST, PREDICTION):
            return len(self._slots)
        seconds = best.result.to_target_s
        together = min(MOST_TOGETHER, round(start_s / seconds), int((turn.room_s - start_s) / (LIKELY * seconds)))
        return max(1, together) * len(self._slots)

    def _run(self, items: Sequence[Item], room_s: float) -> None:
        """A job on each slot within so many seconds; what they did not come to is given up, and will be asked for again."""
        if not items:
            return
        first, num, known = items[0], len(self._slots), self._known
        known = self._defaults().get(first.settings.ranks, known)
        name = f"{first.label}: {first.settings}" if first.settings.global_batch else f"{first.label}, {first.settings}"
        self._on_change(name + (f", and {len(items) - 1} more" if len(items) > 1 else ""))
        groups = [group for group in (items[number::num] for number in range(num)) if group]
        results, error = self._slots.run([self._job(group, known, room_s) for group in groups])
        for group, found in zip(groups, results):
            for item, result in zip(group, found or [None] * len(group)):
                if result is None:
                    self._ledger.give_up(item.study, item.trial)
                else:
                    self._ledger.finish(item.study, item.trial, item.label, item.settings, result)
        if error is not None:  # the user's Ctrl-C, or a script that is refused
            raise error
        self._on_change("")

    def _job(self, items: Sequence[Item], known: Optional[TrialResult], room_s: float) -> Callable[[TrialRunner], list[Optional[TrialResult]]]:
        each_s = max(1.0, (room_s - self._start_s()) / len(items))
        caps = [self._caps(item.settings.ranks, item.times_best, each_s) for item in items]
        runs = [Run(item.settings, each, measure_noise=known is None) for item, each in zip(items, caps)]
        wall_s = sum(each.wall_s - START_S for each in caps) + START_S
        return lambda runner: runner.run_many(runs, known, wall_s)

    def _caps(self, ranks: int, times_best: float, most_s: float) -> Caps:
        best = best_of(self.records, ranks)
        left_s = max(self.left_s, 1.0)
        train_s = left_s / 3 if best is None else times_best * best.result.to_target_s
        if best is not None and len(self._slots) > 1:  # its seconds are those of a step alone, the cap is of one beside others
            train_s = train_s * slowness(self.records, len(self._slots))
        train_s = min(train_s, most_s, left_s)
        return Caps(train_s=train_s, wall_s=min(3 * train_s, left_s) + START_S)

    def _repeat_best(self, numbers: Sequence[int]) -> None:
        """The finalists with other seeds, as far as the budget goes: the same seconds for each number of ranks."""
        if self._seed is None or not self._options.phases:
            return
        while True:
            records = self.records
            wanted = {ranks: finalists.repetitions(records, ranks, self._seed) for ranks in numbers}
            likely_s = {ranks: LIKELY * best.result.to_target_s for ranks in numbers if (best := best_of(records, ranks)) is not None}
            standings = [
                Standing(ranks, ROWS, sum(r.result.budget_s for r in records if r.settings.ranks == ranks and r.label == SEED), self._start_s() + likely_s[ranks])
                for ranks in likely_s if wanted[ranks]
            ]  # fmt: skip
            turn = next_turn(standings, self.left_s)
            if turn is None:
                return
            count = max(1, int((turn.room_s - self._start_s()) / likely_s[turn.ranks])) * len(self._slots)
            study = self._ledger.study(TRIALS)
            self._run([Item(TRIALS, study.ask(), SEED, settings, ROW_AT) for settings in wanted[turn.ranks][:count]], turn.room_s)
            if len(self.records) == len(records):
                return

    def _compare_backends(self, ranks: int, known: TrialResult) -> None:
        best = best_of(self.records, ranks)
        if not self._options.backends or best is None:
            return
        settings = Settings(ranks, best.result.start["global_batch"], best.result.start["peak_lr"], best.settings.optimizer)
        kept = self._ledger.phase("backends")
        if kept is not None and kept["key"] == settings.key and {row["backend"] for row in kept["rows"]} == set(self._options.backends):
            return
        found, spent_s = [], 0.0
        for name in self._options.backends:
            results, wall_s = self._measurer.job("backends", [backends.run(settings)], known, f"backend {name}, {settings}", name)
            found.append(backends.row(name, results[0]))
            spent_s += wall_s
        self._ledger.keep_phase("backends", {"key": settings.key, "rows": found, "note": backends.sentence(found), "wall_s": spent_s})

    def _samples_to_target(self, base: Base) -> int:
        """Of the first trial that met it: what warm-ups are a share of. The same after a resume."""
        met = next((record.result.samples for record in self.records if record.result.outcome == MET), None)
        return met or base.num_samples or 100 * base.global_batch
