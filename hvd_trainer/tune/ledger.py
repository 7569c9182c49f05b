"""What was run, kept by Optuna in a file, so that an interrupted search goes on: nothing that was finished runs again."""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.trial import CAP, MET, SCRIPT_END, Settings, TrialResult

ROWS = "rows"  # the study of the trials that nobody sampled
PHASE = "phase "  # begins the names under which it keeps what phases found


@dataclass(frozen=True)
class Record:
    """One finished trial.

    Args:
        label: why it was run.
        settings, result: what it was and how it ended.
        at: when, by `time.time()`.
    """

    label: str
    settings: Settings
    result: TrialResult
    at: float


@contextlib.contextmanager
def alone(storage: str) -> Iterator[None]:
    """No other search on this file meanwhile: it would take the trial under way here for one that was killed.

    The system gives the file free when the process ends, however it ends. Nothing where the storage is a URL.

    Args:
        storage: as of `Ledger`.

    Raises:
        ConfigError: another search has it, or it cannot be opened.
    """
    if "://" in storage:
        yield
        return
    try:
        file = open(storage, "ab")
    except OSError as error:
        raise ConfigError(f"--storage {storage}: {error.strerror}", "a file in a folder that is there, or a URL", f"mkdir -p {Path(storage).parent}, or leave --storage out") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another search is under way in {storage}", "one at a time", "wait for it, or --out with another folder") from error
        except OSError:  # file systems that have no locks
            pass
        yield


class Ledger:
    """Optuna's studies of one search: one a number of ranks and optimizer, so that each has the same share of trials.

    Args:
        storage: a file for Optuna's journal, or a URL as "sqlite:///tune.db".
        identity: script, arguments and target: what must be the same for a search to go on.
        seed: of the sampler.

    Raises:
        ConfigError: the storage belongs to another search.
    """

    def __init__(self, storage: str, identity: dict[str, Any], seed: int = 0) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if "://" in storage:
            self._storage: Any = storage
        else:
            from optuna.storages import JournalStorage
            from optuna.storages.journal import JournalFileBackend

            self._storage = JournalStorage(JournalFileBackend(storage))
        self._seed = seed
        self._studies: dict[str, optuna.Study] = {}
        self._parsed: dict[tuple[str, int], Optional[Record]] = {}  # a finished trial does not change any more
        known = self.study(ROWS).user_attrs.get("identity")
        if known is None:
            self.study(ROWS).set_user_attr("identity", identity)
        elif known != identity and not (self.records() or self.phases()):  # refused, or stopped, before anything was finished
            self.study(ROWS).set_user_attr("identity", identity)
        elif known != identity:
            changed = ", ".join(f"{name}: {known.get(name)!r} there, {identity.get(name)!r} now" for name in identity if known.get(name) != identity.get(name))
            raise ConfigError(f"{storage} holds another search ({changed})", "the same script, arguments and target", "--storage with another file, or delete this one")
        for summary in optuna.get_all_study_names(self._storage):
            for trial in self.study(summary).get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                self.study(summary).tell(trial.number, state=TrialState.FAIL)  # its process was killed

    def study(self, name: str) -> optuna.Study:
        """The study of this name, made where it is new."""
        if name not in self._studies:
            study = optuna.create_study(storage=self._storage, study_name=name, load_if_exists=True)
            # After a resume it must not draw the same numbers again.
            study.sampler = optuna.samplers.TPESampler(seed=self._seed + 1000 * len(study.get_trials(deepcopy=False)), n_startup_trials=4)
            self._studies[name] = study
        return self._studies[name]

    def phase(self, name: str) -> Optional[dict[str, Any]]:
        """What a phase found, if it was run."""
        text = self.study(ROWS).user_attrs.get(PHASE + name)
        return None if text is None else json.loads(text)

    def keep_phase(self, name: str, found: dict[str, Any]) -> None:
        """Keep what a phase found, as plain values; it is not run again."""
        self.study(ROWS).set_user_attr(PHASE + name, json.dumps(found))

    def phases(self) -> dict[str, dict[str, Any]]:
        """All that were run."""
        return {name.removeprefix(PHASE): json.loads(text) for name, text in self.study(ROWS).user_attrs.items() if name.startswith(PHASE)}

    def records(self) -> list[Record]:
        """All finished trials, the oldest first; only what has come since the last look is parsed."""
        for name in optuna.get_all_study_names(self._storage):
            for trial in self.study(name).get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)):  # FAIL: killed before it was told
                if (name, trial.number) not in self._parsed:
                    self._parsed[name, trial.number] = record_of(trial)
        return sorted((record for record in self._parsed.values() if record is not None), key=lambda record: record.at)

    def find(self, settings: Settings) -> Optional[Record]:
        """The trial of these settings, if it was run."""
        return next((record for record in self.records() if record.settings.key == settings.key), None)

    def finish(self, study: str, trial: Trial, label: str, settings: Settings, result: TrialResult) -> Record:
        """Tell Optuna how a trial ended, and keep all of it."""
        record = Record(label, settings, result, time.time())
        trial.set_user_attr("record", json.dumps({**asdict(record), "result": result.as_dict()}))
        self._tell(study, trial, result)
        return record

    def _tell(self, study: str, trial: Trial, result: TrialResult) -> None:
        value, violation = worth(result)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            trial.set_constraint("target", violation)
        self.study(study).tell(trial, value)

    def teach(self, study: str, record: Record, params: dict[str, Any], distributions: dict[str, Any]) -> None:
        """Let a study's sampler know of a row, once, where the row lies within what it searches."""
        known = self.study(study).get_trials(deepcopy=False)
        inside = all(distributions[name]._contains(distributions[name].to_internal_repr(value)) for name, value in params.items())
        if not inside or any(trial.user_attrs.get("of_row") == record.settings.key for trial in known):
            return
        value, violation = worth(record.result)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            copied = optuna.trial.create_trial(
                params=params, distributions=distributions, value=value, user_attrs={"of_row": record.settings.key}, constraints={"target": violation}
            )
        self.study(study).add_trial(copied)

    def repeat(self, study: str, trial: Trial, result: TrialResult) -> None:
        """The sampler asked for what was run already: tell it what came out."""
        self._tell(study, trial, result)

    def give_up(self, study: str, trial: Trial) -> None:
        """The trial was interrupted: it says nothing, and is run again."""
        self.study(study).tell(trial, state=TrialState.FAIL)
        if trial.params:
            self.study(study).enqueue_trial(trial.params)


def record_of(trial: FrozenTrial) -> Optional[Record]:
    """What `finish` kept; None for other trials."""
    text = trial.user_attrs.get("record")
    if text is None:
        return None
    values = json.loads(text)
    return Record(values["label"], Settings(**values["settings"]), TrialResult.from_dict(values["result"]), values["at"])


def worth(result: TrialResult) -> tuple[float, float]:
    """(seconds, constraint) for Optuna; a target that was not met is a constraint above 0 and not a large number of seconds.

    Example:
        >>> worth(TrialResult(MET, steps=100, step_s=0.01)), worth(TrialResult(CAP, train_s=3.0))
        ((1.0, -1.0), (3.0, 1.0))
    """
    if result.outcome == MET:
        return result.to_target_s, -1.0
    return result.train_s, 1.0 if result.outcome in (CAP, SCRIPT_END) else 2.0
