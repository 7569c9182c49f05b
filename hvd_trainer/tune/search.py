"""The search: the script as it is, what is measured and predicted, rows that are always there, Optuna around them, finalists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune import finalists
from hvd_trainer.tune.finalists import SEED, best_of
from hvd_trainer.tune.ledger import ROWS, Ledger, Record
from hvd_trainer.tune.measure import Measurer
from hvd_trainer.tune.options import Options, Share
from hvd_trainer.tune.phases import backends
from hvd_trainer.tune.phases.memory import is_harmless
from hvd_trainer.tune.runner import Run, TrialRunner
from hvd_trainer.tune.side_by_side import SideBySide
from hvd_trainer.tune.space import Space
from hvd_trainer.tune.start_points import DEFAULT, FITS, PREDICTED, Base, rows
from hvd_trainer.tune.step_times import slowness, with_fits
from hvd_trainer.tune.trial import MET, START_S, Caps, Settings, TrialResult

PRUNE_AT = 1.5  # a sampled trial ends at this many times the best seconds so far
ROW_AT = 4.0  # a row goes on for longer, so that the table can say how much slower it is
MOST_REPEATS = 20  # in a row: then the space is used up
MOST_TOGETHER = 4  # trials in one job
RESERVE = 0.2  # of the budget, for the finalists' other seeds
SAMPLED = "search"


@dataclass(frozen=True)
class Item:
    """A trial to run.

    Args:
        study: name; trial: Optuna's.
        label, settings: as in a `Record`.
        times_best: it ends at this many times the best seconds so far.
    """

    study: str
    trial: Any
    label: str
    settings: Settings
    times_best: float


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
        return self._options.budget_s - sum(record.result.wall_s / record.result.shared_by for record in self.records) - self._measurer.spent_s

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
        first = self._first(numbers[0], self._trials_for(0, len(numbers)))
        if first is None:
            return self.records
        if not first.result.start:
            raise ConfigError(
                f"the script fails with its own settings on {numbers[0]} ranks: {first.result.reason}\n{first.result.last_lines}",
                "a script that trains",
                f"hvd-trainer launch -np {numbers[0]} ... shows the whole output; then start with another --storage",
            )
        base, known = Base.of(first.result.start), first.result
        seed = known.config["config"].get(known.config["fields"].get("seed", ""))
        self._seed = seed if isinstance(seed, int) and not isinstance(seed, bool) else None
        largest = options.largest_batch or base.largest_batch()
        if options.phases:
            self._measured = self._measurer.prediction(base, known, options.ranks, largest, options.noise_scale, options.micro_batch)
        reserve_s = 0.0 if self._seed is None else RESERVE * options.budget_s
        for index, ranks in enumerate(numbers):
            others = len(numbers) - index - 1
            free_s = max(0.0, self.left_s - reserve_s)
            share = Share(ranks, reserve_s + free_s * others / (others + 1), self._trials_for(index, len(numbers)))
            self._search_ranks(share, base, known, largest)
        for ranks in numbers:
            self._repeat_best(ranks, known)
        self._compare_backends(numbers[0], known)
        return self.records

    def _trials_for(self, index: int, parts: int) -> Optional[int]:
        most = self._options.max_trials
        return None if most is None else most // parts + (index < most % parts)

    def _first(self, ranks: int, max_trials: Optional[int]) -> Optional[Record]:
        """The script as it is, with its noise scale."""
        found = self._ledger.find(Settings(ranks))
        if found is None and self._goes_on(Share(ranks, 0.0, max_trials)):
            self._run([Item(ROWS, self._ledger.study(ROWS).ask(), DEFAULT, Settings(ranks), ROW_AT)], None)
            found = self._ledger.find(Settings(ranks))
        return found

    def _search_ranks(self, share: Share, base: Base, known: TrialResult, largest: int) -> None:
        options, ranks = self._options, share.ranks
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
        self._rows(wanted, known, share, (PREDICTED,) if fits_safely else (PREDICTED, FITS))
        # Of a stream nobody knows what share of an epoch a warm-up is.
        warmup = known.config["fields"].get("warmup")
        warms_up, samples = warmup is not None and (base.num_samples is not None or warmup != "warmup_epochs"), self._samples_to_target(base)
        spaces = [
            Space(ranks, base, name, noise_scale, largest, warms_up, samples, best and best["global_batch"], highest_rate) for name in options.optimizers or (None,)
        ]
        for space in spaces:
            for record in self.records:
                if record.label not in (SAMPLED, SEED) and record.settings.global_batch and space.holds(record.settings):
                    self._ledger.teach(space.name, record, space.params(record.settings), space.distributions)
        number = repeats = 0
        while self._goes_on(share) and repeats < MOST_REPEATS:
            items = []
            for _ in range(self._at_once(share)):
                item = self._sampled(spaces[number % len(spaces)])  # in turn: the same number of trials for each
                number += 1
                repeats = 0 if item else repeats + 1
                if item:
                    items.append(item)
            self._run(items, known)

    def _fits(self, ranks: int) -> tuple[Optional[int], bool]:
        """The samples that fit on a rank, and whether trying them is harmless; measured on other ranks where not on these."""
        if not self._measured:
            return self._options.micro_batch, False
        memory = self._measured.get("memory", {})
        known = [memory[number] for number in (str(ranks), *memory) if memory.get(number, {}).get("micro_batch")]
        return (known[0]["micro_batch"], is_harmless(known[0])) if known else (None, False)

    def _goes_on(self, share: Share) -> bool:
        records = self.records
        if share.max_trials is not None and self._count(share.ranks) >= share.max_trials:
            return False
        starts = [record.result.start_s for record in records if record.result.start_s]
        return self.left_s - share.floor_s > max(0.0, min(starts, default=0.0))  # else there is no time for a start

    def _count(self, ranks: int) -> int:
        return sum(record.settings.ranks == ranks and record.label != SEED for record in self.records)

    def _together(self, share: Share) -> int:
        """How many trials to run in one job: as many as take no longer than its start, for Optuna learns nothing between them."""
        best, starts = best_of(self.records, share.ranks), [record.result.start_s for record in self.records if record.result.start_s]
        if best is None or not starts:
            return 1
        most = MOST_TOGETHER if share.max_trials is None else min(MOST_TOGETHER, share.max_trials - self._count(share.ranks))
        return max(1, min(most, round(min(starts) / best.result.to_target_s)))

    def _at_once(self, share: Share) -> int:
        """How many trials to ask for: those of a job, for each slot."""
        most = self._together(share) * len(self._slots)
        return most if share.max_trials is None else max(1, min(most, share.max_trials - self._count(share.ranks)))

    def _rows(self, wanted: Sequence[tuple[str, Settings]], known: TrialResult, share: Share, alone: tuple[str, ...]) -> None:
        """Run those that were not run, several in a job; but one that may be out of memory, or is the cap of the others, has its own."""
        while self._goes_on(share):
            missing = [(label, settings) for label, settings in wanted if self._ledger.find(settings) is None]
            if not missing:
                return
            chosen = missing[:1] if missing[0][0] in alone else [each for each in missing if each[0] not in alone][: self._at_once(share)]
            # The same settings may have two names.
            chosen = list({settings.key: (label, settings) for label, settings in reversed(chosen)}.values())[::-1]
            self._run([Item(ROWS, self._ledger.study(ROWS).ask(), label, settings, ROW_AT) for label, settings in chosen], known)

    def _sampled(self, space: Space) -> Optional[Item]:
        trial = self._ledger.study(space.name).ask(space.distributions)
        settings = space.settings(trial.params)
        before = self._ledger.find(settings)
        if before is not None:
            self._ledger.repeat(space.name, trial, before.result)
            return None
        return Item(space.name, trial, SAMPLED, settings, PRUNE_AT)

    def _run(self, items: Sequence[Item], known: Optional[TrialResult]) -> None:
        """A job on each slot; what they did not come to is given up, and will be asked for again."""
        if not items:
            return
        first, num = items[0], len(self._slots)
        name = f"{first.label}: {first.settings}" if first.settings.global_batch else f"{first.label}, {first.settings}"
        self._on_change(name + (f", and {len(items) - 1} more" if len(items) > 1 else ""))
        groups = [group for group in (items[number::num] for number in range(num)) if group]
        results, error = self._slots.run([self._job(group, known) for group in groups])
        for group, found in zip(groups, results):
            for item, result in zip(group, found or [None] * len(group)):
                if result is None:
                    self._ledger.give_up(item.study, item.trial)
                else:
                    self._ledger.finish(item.study, item.trial, item.label, item.settings, result)
        if error is not None:  # the user's Ctrl-C, or a script that is refused
            raise error
        self._on_change("")

    def _job(self, items: Sequence[Item], known: Optional[TrialResult]) -> Callable[[TrialRunner], list[Optional[TrialResult]]]:
        caps = [self._caps(item.settings.ranks, item.times_best) for item in items]
        runs = [Run(item.settings, each, measure_noise=known is None) for item, each in zip(items, caps)]
        wall_s = sum(each.wall_s - START_S for each in caps) + START_S
        return lambda runner: runner.run_many(runs, known, wall_s)

    def _caps(self, ranks: int, times_best: float) -> Caps:
        best = best_of(self.records, ranks)
        left_s = max(self.left_s, 1.0)
        train_s = left_s / 3 if best is None else min(times_best * best.result.to_target_s, left_s)
        if best is not None and len(self._slots) > 1:  # its seconds are those of a step alone, the cap is of one beside others
            train_s = min(train_s * slowness(self.records, len(self._slots)), left_s)
        return Caps(train_s=train_s, wall_s=min(3 * train_s, left_s) + START_S)

    def _repeat_best(self, ranks: int, known: TrialResult) -> None:
        """The finalists with other seeds, as far as the budget goes."""
        if self._seed is None or not self._options.phases:
            return
        while wanted := finalists.repetitions(self.records, ranks, self._seed):
            best = best_of(self.records, ranks)
            starts = [record.result.start_s for record in self.records if record.result.start_s]
            room_s = self.left_s - min(starts, default=0.0)
            fits = wanted if best is None else wanted[: max(0, int(room_s / (ROW_AT / 2 * best.result.to_target_s)))]
            if not fits:
                return
            before = len(self.records)
            self._run([Item(ROWS, self._ledger.study(ROWS).ask(), SEED, settings, ROW_AT) for settings in fits], known)
            if len(self.records) == before:
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
