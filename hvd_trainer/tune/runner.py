"""Runs of the user's script: orders written, a job of the launcher started, events read; several runs in one job."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Optional

from hvd_trainer.errors import ConfigError
from hvd_trainer.train.trial import TrialOrder
from hvd_trainer.tune.job import JobEnd
from hvd_trainer.tune.target import Target
from hvd_trainer.tune.trial import Caps, Settings, TrialResult, fields_for, result_of


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a job of several runs.

    Args:
        results: of the runs that were over; None for the others.
    """

    def __init__(self, results: Sequence[Optional[TrialResult]]) -> None:
        super().__init__()
        self.results = list(results)


class Refused(ConfigError):
    """The script cannot be a trial, which showed in a job of several runs.

    Args:
        error: what it cannot.
        results: of the runs that were over; None for the others.
    """

    def __init__(self, error: ConfigError, results: Sequence[Optional[TrialResult]]) -> None:
        super().__init__(error.given, error.allowed, error.fix)
        self.results = list(results)


@dataclass(frozen=True)
class Run:
    """One run within a job.

    Args:
        settings: what to set; without any, the script runs as it is.
        caps: where it ends at the latest; `wall_s` is the job's affair.
        measure_noise: measure the gradient noise scale along.
        watch: other fields of the `TrialOrder`; `{"metric": ""}` trains without a target.
    """

    settings: Settings
    caps: Caps
    measure_noise: bool = False
    watch: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrialRunner:
    """Runs trials of one script.

    Args:
        start: (ranks, path of the order, seconds) -> how the job ended: the launcher, with HVD_TRAINER_TRIAL set to the path.
        target: when a trial is done.
        needs: roles that the config must have a field for.
    """

    start: Callable[[int, str, float], JobEnd]
    target: Target
    needs: tuple[str, ...] = ("global_batch", "lr")

    def run(self, settings: Settings, caps: Caps, known: Optional[TrialResult] = None, measure_noise: bool = False) -> TrialResult:
        """Run one trial to its end, in a job of its own; see `run_many`."""
        result = self.run_many([Run(settings, caps, measure_noise)], known, caps.wall_s)[0]
        assert result is not None  # the first run of a job always has a result
        return result

    def run_many(self, runs: Sequence[Run], known: Optional[TrialResult], wall_s: float, backend: str = "") -> list[Optional[TrialResult]]:
        """Run one after another in one job.

        Args:
            runs: all of them on the same number of ranks.
            known: an earlier trial of the script, which says how its fields are called and what its rule makes of a rate, on the same
                number of ranks where there is one; None for the first, which sets nothing.
            wall_s: seconds, after which the job is killed.
            backend: for `ht.init`; "": the script's.

        Returns:
            A result for each run; None for those that an earlier one's failure kept from beginning (never the first).

        Raises:
            Refused: the script cannot be a trial; it has the results of those that were over.
            Interrupted: Ctrl-C; it has them too.
        """
        with tempfile.TemporaryDirectory(prefix="hvd_trainer_trial_") as folder:
            orders = [self._order(run, known, Path(folder, f"events{number}.jsonl")) for number, run in enumerate(runs)]
            order_path = Path(folder, "order.json")
            order_path.write_text(json.dumps({"runs": [asdict(order) for order in orders], "backend": backend}))
            began_s = time.monotonic()
            try:
                ended = self.start(runs[0].settings.ranks, str(order_path), wall_s)
            except KeyboardInterrupt as error:
                raise Interrupted(self._results(orders, None, time.monotonic() - began_s, known)) from error
            return self._results(orders, ended, time.monotonic() - began_s, known)

    def _order(self, run: Run, known: Optional[TrialResult], events: Path) -> TrialOrder:
        settings, fields, expect = run.settings, {}, {}
        if known is not None:
            fields = fields_for(settings, known.config, known.start)
            wanted = {"global_batch": settings.global_batch, "peak_lr": settings.peak_lr, "optimizer": settings.optimizer}
            expect = {name: value for name, value in wanted.items() if value is not None}
        order = TrialOrder(
            str(events), self.target.metric, self.target.sign, self.target.bound, fields, self.needs, expect,
            max_steps=run.caps.steps, max_samples=run.caps.samples, max_train_s=run.caps.train_s, measure_noise=run.measure_noise,
        )  # fmt: skip
        return replace(order, **run.watch)

    def _results(self, orders: Sequence[TrialOrder], ended: Optional[JobEnd], wall_s: float, known: Optional[TrialResult]) -> list[Optional[TrialResult]]:
        """What became of each; `ended` is None where the job was interrupted: then only those that were over."""
        found: list[Optional[TrialResult]] = []
        all_events = [read_events(Path(order.events)) for order in orders]
        own_s = [_own_s(events) for events in all_events]
        left_s = wall_s
        for number, (order, events) in enumerate(zip(orders, all_events)):
            is_over = any(event["event"] == "end" for event in events)
            later = any(all_events[number + 1 :])
            began = number == 0 or bool(events)
            if not is_over and (ended is None or not began):
                found.append(None)
                continue
            mine_s = left_s
            if number < len(orders) - 1 and any(own_s[number + 1 :]):
                mine_s = max(0.0, left_s - sum(own_s[number + 1 :]))
            left_s -= mine_s
            end = JobEnd(1, "") if is_over and ended is None else ended
            if later and not is_over:  # it ended in peace but without an end: what a script does that never trains
                end = JobEnd(0, "")
            try:
                result = result_of(events, end, mine_s, order.fields)
            except ConfigError as error:
                started = next((event for event in events if event["event"] == "start"), {})
                rest = [None] * (len(orders) - number)
                raise Refused(changing_scale(known.start, started) if known and changing_scale(known.start, started) else error, [*found, *rest]) from error
            found.append(replace(result, start_s=max(0.0, mine_s - own_s[number]) if number == 0 and own_s[number] else 0.0))
        return found


def changing_scale(known: dict[str, Any], started: dict[str, Any]) -> Optional[ConfigError]:
    """Why a run had another rate than was set, where the script's `lr_scaling` is a number that it computes; None: for another reason.

    Args:
        known, started: the start events of the run that the rate was computed from, and of this one.

    Example:
        >>> start = {"rule": "fixed", "lr_scale": 2.0, "ranks": 2, "global_batch": 64}
        >>> print(changing_scale(start, {**start, "lr_scale": 4.0, "global_batch": 128}).given)
        the script's lr_scaling is 2 with batch 64 on 2 ranks and 4 with batch 128 on 2 ranks
        >>> changing_scale(start, start) is None
        True
    """
    if (known.get("rule"), started.get("rule")) != ("fixed", "fixed") or known["lr_scale"] == started["lr_scale"]:
        return None
    where = [f"{each['lr_scale']:g} with batch {each['global_batch']} on {each['ranks']} rank{'s' * (each['ranks'] > 1)}" for each in (known, started)]
    return ConfigError(
        f"the script's lr_scaling is {where[0]} and {where[1]}",
        'the same number for all batches on a number of ranks, or "linear", "sqrt", "none"',
        'lr_scaling="linear" where it is the number of ranks or of batches',
    )


def _own_s(events: Sequence[dict[str, Any]]) -> float:
    """Seconds of a run without the start of its job, as the run itself saw it; 0 where it did not come to its end."""
    return next((event.get("wall_s") or 0.0 for event in events if event["event"] == "end"), 0.0)


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a file of JSON lines; a line that a kill tore is left out."""
    if not path.exists():
        return []
    events = []
    for line in path.read_text().splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return [event for event in events if isinstance(event, dict) and "event" in event]
