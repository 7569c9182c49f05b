"""A script as one trial of `hvd-trainer tune`: which fields it sets, when the trial ends, and what is written down.

`tune` names a JSON file in HVD_TRAINER_TRIAL. `ht.run` reads it here and overrides the config; a Trainer that finds it gets a
`TrialWatch`, which appends events to a file of JSON lines, one object each, from rank 0:

    {"event": "config", ...}    the config and its fields for the search
    {"event": "start", ...}     what the run is: batch, rates, optimizer
    {"event": "check", ...}     step, samples, train_s, the losses since the last one, the metrics of ht.Evaluate
    {"event": "end", "outcome": "met" | "cap" | "script_end" | "diverged", ...}
    {"event": "error", "kind": ..., "message": ...}     from the rank that failed

The file holds a job: several such runs, one after another in the same processes, for a start costs seconds. Each has an
events file of its own, and begins with the random states that the process began with.
"""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Optional

from hvd_trainer import env
from hvd_trainer.errors import ConfigError, HvdTrainerError, NonFiniteError
from hvd_trainer.train.config import override

SIGNS = {"<=": operator.le, ">=": operator.ge}
# What a search sets, and the names under which a config may have it; the first is the one to recommend.
ROLES = {
    "global_batch": ("global_batch", "global_batch_size", "batch_size", "batch"),
    "lr": ("lr", "learning_rate", "base_lr"),
    "optimizer": ("optimizer", "optimizer_name", "optim"),
    "warmup": ("warmup_epochs", "warmup_steps", "warmup_samples"),
    "seed": ("seed",),
}
SHOW = {"global_batch": "global_batch: int = 64", "lr": "lr: float = 0.1", "optimizer": 'optimizer: str = "sgd"', "warmup": "warmup_epochs: float = 0", "seed": "seed: int = 0"}

_current: Optional[TrialOrder] = None
_trained: frozenset[tuple[str, int]] = frozenset()


class TrialRefused(ConfigError):
    """The script cannot be a trial as it is; the message says what to change."""


class TrialEnded(BaseException):
    """The trial is over. Not an Exception: what the script does after `fit` is no part of a trial, nor is catching this."""


@dataclass(frozen=True)
class TrialOrder:
    """What the parent asks of one trial.

    Args:
        events: path of the file of JSON lines.
        metric, sign, bound: the target: "val_loss", "<=", 0.42. An empty metric: only caps end the run, nothing is evaluated.
        fields: config field -> value.
        needs: roles (see `ROLES`) that the config must have a field for.
        expect: what the run must then be ("global_batch", "peak_lr", "optimizer"); a script that ignores a field is refused.
        max_steps, max_samples, max_train_s: caps; None: the script's own length. Evaluations do not count as training.
        diverged_factor: a loss above this many times the first one counts as diverged.
        evaluate_growth: evaluate again after this many times the steps, so that the steps to target are known that well.
        measure_noise: measure the gradient noise scale along.
        warm_steps: first steps that do not count for the median seconds of a step, as long as there are others.
        num_losses: write down the losses of so many first steps.
        sweep: instead of training, a range test of the rate with these arguments of `lr_range_test`.
    """

    events: str
    metric: str
    sign: str
    bound: float
    fields: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ("global_batch", "lr")
    expect: dict[str, Any] = field(default_factory=dict)
    max_steps: Optional[int] = None
    max_samples: Optional[int] = None
    max_train_s: Optional[float] = None
    diverged_factor: float = 10.0
    evaluate_growth: float = 1.05
    measure_noise: bool = False
    warm_steps: int = 1
    num_losses: int = 0
    sweep: dict[str, float] = field(default_factory=dict)

    def met(self, value: float) -> bool:
        """Whether a value of the metric is the target."""
        return SIGNS[self.sign](value, self.bound)

    def write(self, event: str, **values: Any) -> None:
        """Append an event; JSON has no NaN, which becomes null."""
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        with open(self.events, "a") as file:
            file.write(json.dumps({"event": event, **plain}, default=str) + "\n")

    def apply(self, config: Any) -> Any:
        """The config with the trial's values.

        Raises:
            TrialRefused: there is no config, or it has no field for something that the search sets.
        """
        found = roles(config)
        missing = [role for role in self.needs if role not in found]
        if missing:
            have = "it has no config" if config is None else f"its config has the fields {', '.join(_names(config))}"
            raise TrialRefused(
                f"the script cannot be tuned: {have}, none of them for {', '.join(missing)}",
                "; ".join(f"{role}: {', '.join(ROLES[role])}" for role in missing),
                f"ht.run(main, config) with a field {'; '.join(SHOW[role] for role in missing)}, and main(comm, config) that uses it",
            )
        # Text fields take what stands there, quotes and all.
        words = {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.fields.items()}
        return override(config, [word for name, text in words.items() for word in ("--set", f"{name}={text}")])

    def failed(self, error: BaseException) -> None:
        """Write down what ended the run on this rank."""
        if isinstance(error, NonFiniteError):
            self.write("end", outcome="diverged", message=str(error))
        else:
            self.write("error", kind=type(error).__name__, message=str(error).strip() or repr(error), ours=isinstance(error, HvdTrainerError))


@dataclass(frozen=True)
class TrialJob:
    """What one start of the script does.

    Args:
        runs: one after another.
        backend: for `ht.init`; "": as the script has it.
    """

    runs: tuple[TrialOrder, ...]
    backend: str = ""


def roles(config: Any) -> dict[str, str]:
    """Role -> the config's field for it, as far as there is one.

    Example:
        >>> roles({"batch_size": 64, "lr": 0.1, "epochs": 3})
        {'global_batch': 'batch_size', 'lr': 'lr'}
    """
    names = _names(config)
    found = {role: next((name for name in candidates if name in names), "") for role, candidates in ROLES.items()}
    return {role: name for role, name in found.items() if name}


def begin() -> Optional[TrialJob]:
    """The job of this process, from HVD_TRAINER_TRIAL; None outside of `tune`. Its first run is now the current one."""
    global _current
    path, _ = env.own_setting("TRIAL", "")
    end()
    if not path:
        return None
    content = json.loads(Path(str(path)).read_text())
    runs = tuple(TrialOrder(**{**each, "needs": tuple(each["needs"])}) for each in content["runs"])
    enter(runs[0])
    return TrialJob(runs, content["backend"])


def enter(order: TrialOrder) -> None:
    """From here on this run of the job is under way."""
    global _current
    _current = order


def end() -> None:
    """`ht.run` is over."""
    global _current, _trained
    _current, _trained = None, frozenset()


def leave(trained: frozenset[tuple[str, int]]) -> None:
    """What a run of the job leaves for the next one to look at: names and checksums of the parameters that it changed."""
    global _trained
    _trained = trained


def left() -> frozenset[tuple[str, int]]:
    """What the run before this one left."""
    return _trained


def current() -> Optional[TrialOrder]:
    """The order under which `ht.run` is running; None outside of `tune`."""
    return _current


def _names(config: Any) -> list[str]:
    if isinstance(config, Mapping):
        return list(config)
    return [each.name for each in dataclasses.fields(config)] if dataclasses.is_dataclass(config) else []


def plain_fields(config: Any) -> dict[str, Any]:
    """The config's fields that are numbers, text and paths (which `TrialOrder.write` makes text)."""
    values = dict(config) if isinstance(config, Mapping) else {name: getattr(config, name) for name in _names(config)}
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str, PurePath))}
