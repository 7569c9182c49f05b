"""What a report.json says, with what is missing in it left out rather than refused (pure)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Optional

MET, SCRIPT_END, DIVERGED, FAILED = "target met", "script ended", "diverged", "failed"
DEFAULT, LINEAR, FITS = "script's default", "linear rule", "N x what fits"
LARGEST = 2**53  # batch: a float holds whole numbers up to here


def number(value: Any) -> Optional[float]:
    """A finite number, or None for everything else that JSON can hold.

    Example:
        >>> [number(value) for value in (2, float("nan"), None, "3", True)]
        [2.0, None, None, None, None]
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one for everything else that JSON can hold."""
    return value if isinstance(value, Mapping) else {}


def whole(value: Any) -> Optional[int]:
    """A whole number of at least 1, as batches and ranks are, else None.

    Example:
        >>> [whole(value) for value in (64, 64.0, 0, None, "64", 1e300)]
        [64, 64, None, None, None, None]
    """
    known = number(value)
    return int(known) if known is not None and 1 <= known <= LARGEST else None


@dataclass(frozen=True)
class Trial:
    """One trial, as it ran.

    Args:
        label: why it was run.
        ranks, global_batch, peak_lr, optimizer, warmup_steps: what it was.
        outcome, reason: how it ended.
        steps, samples: taken.
        step_s: median seconds of a step.
        seconds: of training to the target, as the search counts them; infinite where it was not met.
        train_s, wall_s: seconds of training, and of the whole job (its share of them where jobs ran side by side).
        noise_scale: in samples, where it was measured.
        key: the same for trials that differ in the seed alone.
    """

    label: str
    ranks: int
    global_batch: Optional[int]
    peak_lr: Optional[float]
    optimizer: str
    warmup_steps: Optional[float]
    outcome: str
    reason: str
    steps: int
    samples: int
    step_s: Optional[float]
    seconds: float
    train_s: float
    wall_s: float
    noise_scale: Optional[float] = None
    key: str = ""

    @property
    def is_met(self) -> bool:
        """Whether it came to the target in a time that is known."""
        return math.isfinite(self.seconds)

    @staticmethod
    def of(values: Mapping[str, Any]) -> Trial:
        """From one of the JSON's trials."""
        settings, result = mapping(values.get("settings")), mapping(values.get("result"))
        start = mapping(result.get("start"))
        steps, step_s = int(number(result.get("steps")) or 0), number(result.get("step_s"))
        step_s = step_s if step_s and step_s > 0 else None
        batch, rate = whole(start.get("global_batch", settings.get("global_batch"))), number(start.get("peak_lr", settings.get("peak_lr")))
        key = json.dumps({name: value for name, value in settings.items() if name != "seed"}, sort_keys=True)
        met = result.get("outcome") == MET and step_s is not None and steps > 0 and None not in (batch, rate)
        seconds = (number(values.get("to_target_s")) or _seconds_of_old(result)) if met else math.inf
        return Trial(
            str(values.get("label", "")), whole(settings.get("ranks")) or whole(start.get("ranks")) or 1, batch, rate,
            str(start.get("optimizer") or settings.get("optimizer") or ""),
            number(start.get("warmup_steps")), str(result.get("outcome", "")), str(result.get("reason") or ""), steps,
            int(number(result.get("samples")) or 0), step_s, seconds,
            number(result.get("train_s")) or 0.0, (number(result.get("wall_s")) or 0.0) / (whole(result.get("shared_by")) or 1), number(result.get("noise_scale")), key,
        )  # fmt: skip


def _seconds_of_old(result: Mapping[str, Any]) -> float:
    """Seconds to the target where the file is an old one that does not have them."""
    step_s, fitted_s = number(result.get("step_s")) or math.inf, number(result.get("fitted_step_s"))
    return (number(result.get("steps")) or math.inf) * min(step_s, fitted_s if fitted_s and fitted_s > 0 else step_s)


@dataclass(frozen=True)
class Facts:
    """A whole report.json.

    Args:
        script, target: as they were given.
        budget_s: None: not said.
        interrupted: whether the search was.
        trials: all of them.
        recommended: ranks -> fields of the config.
        start: the start event of the first trial that has one: what the script is by itself.
        phases: what was measured beside the trials; missing parts are missing.
        chosen: ranks -> place of the recommended trial in `trials`; empty in old files.
        commands: ranks -> how to train with what is recommended; empty in old files.
    """

    script: str
    target: str
    budget_s: Optional[float]
    interrupted: bool
    trials: tuple[Trial, ...]
    recommended: Mapping[int, Mapping[str, Any]]
    start: Mapping[str, Any] = field(default_factory=dict)
    phases: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[int, int] = field(default_factory=dict)
    commands: Mapping[int, str] = field(default_factory=dict)

    @staticmethod
    def of(content: Mapping[str, Any]) -> Facts:
        """From the JSON.

        Example:
            >>> Facts.of({"script": "a.py", "target": "loss<=1"}).ranks
            []
        """
        listed = content.get("trials")
        trials = [mapping(trial) for trial in listed] if isinstance(listed, list) else []
        default = [trial for trial in trials if trial.get("label") == DEFAULT] + trials
        starts = [mapping(mapping(trial.get("result")).get("start")) for trial in default]
        named = mapping(content.get("recommended")).items()
        recommended = {int(ranks): fields for ranks, fields in named if str(ranks).isdecimal() and isinstance(fields, Mapping)}
        places = {ranks: number(mapping(best).get("trial")) for ranks, best in mapping(content.get("best")).items()}
        chosen = {int(ranks): int(place) for ranks, place in places.items() if str(ranks).isdecimal() and place is not None and 0 <= place < len(trials)}
        commands = {int(ranks): command for ranks, command in mapping(content.get("next")).items() if str(ranks).isdecimal() and isinstance(command, str)}
        return Facts(
            str(content.get("script", "")), str(content.get("target", "")), number(content.get("budget_s")), bool(content.get("interrupted")),
            tuple(Trial.of(trial) for trial in trials), recommended, next((start for start in starts if start), {}), mapping(content.get("phases")), chosen,
            commands,
        )  # fmt: skip

    @property
    def ranks(self) -> list[int]:
        """The numbers of ranks that trials ran on, the largest first."""
        return sorted({trial.ranks for trial in self.trials}, reverse=True)

    def on(self, ranks: int) -> list[Trial]:
        """The trials on so many ranks."""
        return [trial for trial in self.trials if trial.ranks == ranks]

    def seeds_of(self, trial: Trial) -> list[Trial]:
        """The trials that differ from this one in the seed alone, itself included, in the order in which they ran."""
        return self._by_key.get((trial.ranks, trial.key), [])

    @cached_property
    def _by_key(self) -> dict[tuple[int, str], list[Trial]]:
        found: dict[tuple[int, str], list[Trial]] = {}
        for trial in self.trials:
            found.setdefault((trial.ranks, trial.key), []).append(trial)
        return found

    def seconds(self, trial: Trial) -> float:
        """To the target, the median over seeds; infinite where half of them or more did not come to it."""
        return statistics.median([other.seconds for other in self.seeds_of(trial)] or [trial.seconds])

    def steps(self, trial: Trial) -> int:
        """To the target, the median over the seeds that came to it."""
        return round(statistics.median([other.steps for other in self.seeds_of(trial) if other.is_met] or [trial.steps]))

    def best(self, ranks: int) -> Optional[Trial]:
        """The trial on so many ranks that the search recommends; in an old file, that was soonest at the target over its seeds."""
        named = self.trials[self.chosen[ranks]] if ranks in self.chosen else None
        if named is not None and named.is_met and named.ranks == ranks:
            return named
        firsts = [trial for trial in self.on(ranks) if trial.is_met and self.seeds_of(trial)[0] is trial and math.isfinite(self.seconds(trial))]
        repeated = [trial for trial in firsts if len(self.seeds_of(trial)) > 1]
        return min(repeated or firsts, key=self.seconds, default=None)

    def row(self, label: str, ranks: int) -> Optional[Trial]:
        """The fastest trial of this label on so many ranks; where none met the target, the one that went furthest."""
        found = [trial for trial in self.on(ranks) if trial.label == label]
        return min(found, key=lambda trial: (trial.seconds, -trial.samples), default=None)

    def part(self, name: str) -> Mapping[str, Any]:
        """A phase; empty where there is none, or where it is no mapping."""
        found = self.phases.get(name)
        return found if isinstance(found, Mapping) else {}

    def entries(self, name: str, within: str = "") -> list[Mapping[str, Any]]:
        """A phase that is a list (or a list within a phase), without what is no mapping.

        Example:
            >>> Facts("", "", None, False, (), {}, {}, {"backends": [{"a": 1}, None]}).entries("backends")
            [{'a': 1}]
        """
        found = self.part(name).get(within) if within else self.phases.get(name)
        return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, Sequence) and not isinstance(found, str) else []

    @property
    def notes(self) -> list[str]:
        """Remarks of the phases."""
        found = self.phases.get("notes")
        return [str(note) for note in found] if isinstance(found, list) else []

    def micro_batch(self, ranks: int) -> Optional[int]:
        """Samples that fit on a rank, as the memory phase found."""
        found = self.part("memory").get(str(ranks))
        value = number(found.get("micro_batch", found.get("largest"))) if isinstance(found, Mapping) else number(found)
        return None if value is None or value < 1 else int(value)
