"""The search: rows that are always measured, then Optuna around them, each trial a job of its own, until the budget is spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.ledger import ROWS, Ledger, Record
from hvd_trainer.tune.start_points import DEFAULT, Base, middle_rate, rows
from hvd_trainer.tune.trial import MET, START_S, Caps, Settings, TrialResult, TrialRunner

NEAR, FAR = 4.0, 16.0  # the rate is searched within this factor of the rule's; FAR for an optimizer that nobody tuned
WARMUP_SHARES = (0.0, 0.02, 0.05, 0.1)  # of the samples to the target
PRUNE_AT = 1.5  # a sampled trial ends at this many times the best seconds so far
ROW_AT = 4.0  # a row goes on for longer, so that the table can say how much slower it is
MOST_REPEATS = 20  # in a row: then the space is used up
SAMPLED = "search"


@dataclass(frozen=True)
class Options:
    """What is searched.

    Args:
        ranks: numbers of ranks, each with its own recommendation.
        budget_s: seconds for all trials, those before an interruption included.
        optimizers: names; (): the script's.
        micro_batch: samples that fit on a rank; None: not known.
        noise_scale: in samples; None: not known.
        largest_batch: None: from the script's batch and data.
        max_trials: None: as many as the budget allows.
    """

    ranks: tuple[int, ...]
    budget_s: float
    optimizers: tuple[str, ...] = ()
    micro_batch: Optional[int] = None
    noise_scale: Optional[float] = None
    largest_batch: Optional[int] = None
    max_trials: Optional[int] = None


@dataclass(frozen=True)
class Share:
    """What one number of ranks may use.

    Args:
        ranks: processes.
        floor_s: seconds of the budget to leave for the others.
        max_trials: on these ranks; None: no limit.
    """

    ranks: int
    floor_s: float
    max_trials: Optional[int]


class Search:
    """Runs trials until the budget is spent; started again on the same ledger, it goes on.

    Args:
        runner: starts trials.
        ledger: where they are kept.
        options: what is searched.
        on_change: called with what is running now ("" for nothing), before and after each trial.
    """

    def __init__(self, runner: TrialRunner, ledger: Ledger, options: Options, on_change: Callable[[str], None] = lambda running: None) -> None:
        self._runner, self._ledger, self._options, self._on_change = runner, ledger, options, on_change

    @property
    def records(self) -> list[Record]:
        """What was run, the oldest first."""
        return self._ledger.records()

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left."""
        return self._options.budget_s - sum(record.result.wall_s for record in self.records)

    def run(self) -> list[Record]:
        """Search.

        Returns:
            All finished trials.

        Raises:
            ConfigError: the script cannot be tuned, or fails as it is.
            KeyboardInterrupt: what was finished is kept; the trial under way will run again.
        """
        numbers = sorted(self._options.ranks, reverse=True)
        first = self._row(DEFAULT, Settings(numbers[0]), None, Share(numbers[0], 0.0, self._trials_for(0, len(numbers))))
        if first is None:
            return self.records
        if not first.result.start:
            raise ConfigError(
                f"the script fails with its own settings on {numbers[0]} ranks: {first.result.reason}\n{first.result.last_lines}",
                "a script that trains",
                f"hvd-trainer launch -np {numbers[0]} ... shows the whole output; then start with another --storage",
            )
        base = Base.of(first.result.start)
        for index, ranks in enumerate(numbers):
            others = len(numbers) - index - 1
            share = Share(ranks, self.left_s * others / (others + 1), self._trials_for(index, len(numbers)))
            self._search_ranks(share, base, first.result)
        return self.records

    def _trials_for(self, index: int, parts: int) -> Optional[int]:
        most = self._options.max_trials
        return None if most is None else most // parts + (index < most % parts)

    def _search_ranks(self, share: Share, base: Base, known: TrialResult) -> None:
        options, ranks = self._options, share.ranks
        largest = options.largest_batch or base.largest_batch()
        self._row(DEFAULT, Settings(ranks), None, share)
        for label, settings in rows(base, ranks, options.micro_batch, options.noise_scale, largest):
            self._row(label, settings, known, share)
        warms_up = "warmup" in known.config["fields"]
        spaces = [Space(ranks, base, name, options.noise_scale, largest, warms_up, self._samples_to_target(base)) for name in options.optimizers or (None,)]
        for space in spaces:
            for record in self.records:
                if record.label != SAMPLED and record.settings.global_batch and space.holds(record.settings):
                    self._ledger.teach(space.name, record, space.params(record.settings), space.distributions)
        number = repeats = 0
        while self._goes_on(share) and repeats < MOST_REPEATS:
            is_new = self._sampled(spaces[number % len(spaces)], known)  # in turn: the same number of trials for each
            number, repeats = number + 1, 0 if is_new else repeats + 1

    def _goes_on(self, share: Share) -> bool:
        records = self.records
        if share.max_trials is not None and sum(record.settings.ranks == share.ranks for record in records) >= share.max_trials:
            return False
        starts = [record.result.wall_s - record.result.train_s for record in records if record.result.train_s]
        return self.left_s - share.floor_s > max(0.0, min(starts, default=0.0))  # else there is no time for a start

    def _row(self, label: str, settings: Settings, known: Optional[TrialResult], share: Share) -> Optional[Record]:
        found = self._ledger.find(settings)
        if found is None and self._goes_on(share):
            trial = self._ledger.study(ROWS).ask()
            return self._run(ROWS, trial, label, settings, known, ROW_AT)
        return found

    def _sampled(self, space: Space, known: TrialResult) -> bool:
        trial = self._ledger.study(space.name).ask(space.distributions)
        settings = space.settings(trial.params)
        before = self._ledger.find(settings)
        if before is not None:
            self._ledger.repeat(space.name, trial, before.result)
            return False
        self._run(space.name, trial, SAMPLED, settings, known, PRUNE_AT)
        return True

    def _run(self, study: str, trial: Any, label: str, settings: Settings, known: Optional[TrialResult], times_best: float) -> Record:
        self._on_change(f"{label}: {settings}" if settings.global_batch else f"{label}, {settings}")
        try:
            result = self._runner.run(settings, self._caps(settings.ranks, times_best), known)
        except BaseException:  # the user's Ctrl-C, or a script that is refused
            self._ledger.give_up(study, trial)
            raise
        record = self._ledger.finish(study, trial, label, settings, result)
        self._on_change("")
        return record

    def _caps(self, ranks: int, times_best: float) -> Caps:
        best = best_of(self.records, ranks)
        left_s = max(self.left_s, 1.0)
        train_s = left_s / 3 if best is None else min(times_best * best.result.to_target_s, left_s)
        return Caps(train_s=train_s, wall_s=min(3 * train_s, left_s) + START_S)

    def _samples_to_target(self, base: Base) -> int:
        """Of the first trial that met it: what warm-ups are a share of. The same after a resume."""
        met = next((record.result.samples for record in self.records if record.result.outcome == MET), None)
        return met or base.num_samples or 100 * base.global_batch


class Space:
    """What Optuna may choose for one number of ranks and one optimizer, and what its parameters mean.

    The rate is a multiple of the rule's for the batch, so that a good multiple at one batch is likely good at another.

    Args:
        ranks, base, optimizer, noise_scale: see `middle_rate`.
        largest: batch.
        warms_up: whether the script's config has a warm-up.
        samples: to the target, roughly.
    """

    def __init__(
        self, ranks: int, base: Base, optimizer: Optional[str], noise_scale: Optional[float], largest: int, warms_up: bool, samples: int
    ) -> None:
        self._ranks, self._base, self._optimizer, self._noise_scale, self._samples = ranks, base, optimizer, noise_scale, samples
        self.name = f"ranks={ranks} optimizer={optimizer or 'script'}"
        is_known = optimizer in (None, base.optimizer)
        around = NEAR if is_known else FAR
        smallest = max(ranks, base.global_batch // 4, 1)
        self.distributions: dict[str, Any] = {
            "global_batch": IntDistribution(min(smallest, largest), largest, log=True),
            "rate_multiple": FloatDistribution(1 / around, around, log=True),
        }
        if warms_up:
            self.distributions["warmup_share"] = CategoricalDistribution(WARMUP_SHARES)

    def settings(self, params: dict[str, Any]) -> Settings:
        """What these parameters are."""
        batch = params["global_batch"]
        rate = params["rate_multiple"] * middle_rate(self._base, batch, self._optimizer, self._noise_scale)
        share = params.get("warmup_share")
        return Settings(self._ranks, batch, rate, self._optimizer, None if share is None else round(share * self._samples))

    def params(self, settings: Settings) -> dict[str, Any]:
        """The parameters of a row; its warm-up is the script's, which counts as the middle one."""
        rate = middle_rate(self._base, settings.global_batch, self._optimizer, self._noise_scale)
        params = {"global_batch": settings.global_batch, "rate_multiple": settings.peak_lr / rate, "warmup_share": WARMUP_SHARES[2]}
        return {name: params[name] for name in self.distributions}

    def holds(self, settings: Settings) -> bool:
        """Whether a row is of these ranks and this optimizer."""
        return settings.ranks == self._ranks and self._optimizer in (None, self._base.optimizer)


def best_of(records: Sequence[Record], ranks: int) -> Optional[Record]:
    """The trial on so many ranks that was soonest at the target; None where none was."""
    met = [record for record in records if record.settings.ranks == ranks and math.isfinite(record.result.to_target_s)]
    return min(met, key=lambda record: record.result.to_target_s, default=None)
