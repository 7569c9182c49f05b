"""What one number of ranks has still to run: its rows, then what Optuna samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from hvd_trainer.tune.finalists import SEED
from hvd_trainer.tune.ledger import ROWS, Ledger, Record
from hvd_trainer.tune.space import Space
from hvd_trainer.tune.start_points import DEFAULT, PREDICTED
from hvd_trainer.tune.trial import Settings
from hvd_trainer.tune.turns import DONE, FIRST, PREDICTION, SAMPLES
from hvd_trainer.tune.turns import ROWS as ROWS_STAGE

PRUNE_AT = 1.5  # a sampled trial ends at this many times the best seconds so far
ROW_AT = 4.0  # a row goes on for longer, so that the table can say how much slower it is
MOST_REPEATS = 20  # in a row: then the space is used up
SAMPLED = "search"
FOR_ALL = (DEFAULT, PREDICTED)  # what every number of ranks gets, whatever it takes


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


@dataclass
class Lane:
    """One number of ranks.

    Args:
        ranks: processes.
        ledger: keeps what was run.
        max_trials: on these ranks; None: no limit.
        wanted: (label, settings) that are always run, in this order.
        alone: labels that need a job of their own: what may be out of memory, and what is the cap of the others.
        spaces: to sample from, in turn.
    """

    ranks: int
    ledger: Ledger
    max_trials: Optional[int] = None
    wanted: Sequence[tuple[str, Settings]] = ()
    alone: Sequence[str] = ()
    spaces: Sequence[Space] = ()
    _sampled: int = field(default=0, init=False)
    _repeats: int = field(default=0, init=False)

    def count(self, records: Sequence[Record]) -> int:
        """Trials so far, without repetitions."""
        return sum(record.settings.ranks == self.ranks and record.label != SEED for record in records)

    def spent_s(self, records: Sequence[Record]) -> float:
        """Seconds beyond what every number of ranks gets."""
        mine = [record for record in records if record.settings.ranks == self.ranks and record.label not in (*FOR_ALL, SEED)]
        return sum(record.result.budget_s for record in mine)

    def stage(self, records: Sequence[Record]) -> int:
        """What it would run next, as of `turns`."""
        if self.max_trials is not None and self.count(records) >= self.max_trials:
            return DONE
        missing = self._missing(records)
        if missing:
            return {DEFAULT: FIRST, PREDICTED: PREDICTION}.get(missing[0][0], ROWS_STAGE)
        return SAMPLES if self.spaces and self._repeats < MOST_REPEATS else DONE

    def items(self, records: Sequence[Record], most: int) -> list[Item]:
        """The next trials, all for one job or one for each slot; () where the sampler asked only for what was run.

        Args:
            records: all so far.
            most: at most so many.
        """
        most = most if self.max_trials is None else max(1, min(most, self.max_trials - self.count(records)))
        missing = self._missing(records)
        if not missing:
            return self._samples(most, records)
        chosen = missing[:1] if missing[0][0] in self.alone else [each for each in missing if each[0] not in self.alone][:most]
        # The same settings may have two names.
        chosen = list({settings.key: (label, settings) for label, settings in reversed(chosen)}.values())[::-1]
        return [Item(ROWS, self.ledger.study(ROWS).ask(), label, settings, ROW_AT) for label, settings in chosen]

    def _missing(self, records: Sequence[Record]) -> list[tuple[str, Settings]]:
        known = {record.settings.key for record in records}
        return [(label, settings) for label, settings in self.wanted if settings.key not in known]

    def _samples(self, most: int, records: Sequence[Record]) -> list[Item]:
        self._teach(records)
        known = {record.settings.key: record for record in records}
        found = []
        for _ in range(most):
            space = self.spaces[self._sampled % len(self.spaces)]  # in turn: the same number of trials for each
            trial = self.ledger.study(space.name).ask(space.distributions)
            settings = space.settings(trial.params)
            before = known.get(settings.key)
            self._sampled += 1
            self._repeats = 0 if before is None else self._repeats + 1
            if before is None:
                found.append(Item(space.name, trial, SAMPLED, settings, PRUNE_AT))
            else:
                self.ledger.repeat(space.name, trial, before.result)
        return found

    def _teach(self, records: Sequence[Record]) -> None:
        """Let the samplers know of the rows, once."""
        if self._sampled:
            return
        for space in self.spaces:
            for record in records:
                if record.label not in (SAMPLED, SEED) and record.settings.global_batch and space.holds(record.settings):
                    self.ledger.teach(space.name, record, space.params(record.settings), space.distributions)
