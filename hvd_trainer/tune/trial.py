"""One trial: a child job of the launcher that runs the user's script with other settings, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.job import JobEnd

MET, CAP, SCRIPT_END, DIVERGED, FAILED = "target met", "cap reached", "script ended", "diverged", "failed"
OUTCOMES = {"met": MET, "cap": CAP, "script_end": SCRIPT_END, "diverged": DIVERGED}
LEAST_STEPS = 2  # the first one allocates, and says nothing of a step
START_S = 180.0  # what starting and ending may take besides the training, on a machine that is busy
OUT_OF_MEMORY = ("out of memory", "cannot allocate memory", "can't allocate memory", "bad_alloc", "memoryerror", "oom-kill")


@dataclass(frozen=True)
class Settings:
    """What a trial runs with. None: as the script has it.

    Args:
        ranks: processes.
        global_batch: samples a step.
        peak_lr: the rate after scaling and warm-up, which is what batches and optimizers can be compared by.
        optimizer: name, as of `ht.make_optimizer`.
        warmup_samples: length of the warm-up.
        seed: of a run that repeats another trial.
    """

    ranks: int
    global_batch: Optional[int] = None
    peak_lr: Optional[float] = None
    optimizer: Optional[str] = None
    warmup_samples: Optional[int] = None
    seed: Optional[int] = None

    @property
    def without_seed(self) -> Settings:
        """What repetitions with other seeds have in common."""
        return replace(self, seed=None)

    @property
    def key(self) -> str:
        """The same for settings that are the same to four digits; what was run once is not run again."""
        rate = "" if self.peak_lr is None else f"{self.peak_lr:.4g}"
        return "/".join(str(part) for part in (self.ranks, self.global_batch, rate, self.optimizer, self.warmup_samples, *([] if self.seed is None else [f"seed {self.seed}"])))

    def __str__(self) -> str:
        parts = [show_count(self.ranks, "rank")]
        if self.global_batch is not None:
            parts.append(f"batch {self.global_batch}")
        if self.peak_lr is not None:
            parts.append(f"rate {self.peak_lr:.3g}")
        if self.optimizer:
            parts.append(self.optimizer)
        if self.warmup_samples:
            parts.append(f"warm-up {show_count(self.warmup_samples, 'sample')}")
        if self.seed is not None:
            parts.append(f"seed {self.seed}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Caps:
    """Where a trial ends without the target.

    Args:
        train_s: seconds of training; None: none.
        steps, samples: None: the script's own length.
        wall_s: seconds in all, after which the job is killed.
    """

    train_s: Optional[float] = None
    steps: Optional[int] = None
    samples: Optional[int] = None
    wall_s: float = 3600.0


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    Args:
        outcome: MET, CAP, SCRIPT_END (its own epochs were over before), DIVERGED or FAILED.
        reason: what it said, where it was not MET.
        steps, samples: taken.
        train_s: seconds of training, without the start and without evaluations.
        step_s: median seconds of a step; None where none was taken.
        value: of the target's metric, last seen.
        wall_s: seconds of the job; of one of several runs in a job its own, the first one's with the start.
        start_s: seconds that starting took; 0 for a run after another in the same job.
        fields: the config fields that were set.
        start: the start event: what the run was.
        config: the script's config: {"fields": role -> name, "config": name -> value}.
        checks: the check events.
        noise_scale: measured along, in samples; None: undetermined or not measured.
        end: the end event: what else was measured.
        last_lines: of the output, where it FAILED.
        shared_by: jobs that ran at the same time, of which this was one.
        fitted_step_s: seconds of a step by the fit over all trials; None: too few for one. Not kept with the trial.
    """

    outcome: str
    reason: str = ""
    steps: int = 0
    samples: int = 0
    train_s: float = 0.0
    step_s: Optional[float] = None
    value: Optional[float] = None
    wall_s: float = 0.0
    fields: dict[str, Any] = field(default_factory=dict)
    start: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    checks: tuple[dict[str, Any], ...] = ()
    noise_scale: Optional[float] = None
    end: dict[str, Any] = field(default_factory=dict)
    start_s: float = 0.0
    last_lines: str = ""
    shared_by: int = 1
    fitted_step_s: Optional[float] = field(default=None, compare=False)

    @property
    def to_target_s(self) -> float:
        """Steps times the seconds of one; infinite without the target.

        A step is the median, in which single slow ones drop out, or what the fit says where that is less: then other work
        has slowed the whole trial.
        """
        if self.outcome != MET or not self.step_s:
            return math.inf
        return self.steps * min(self.step_s, self.fitted_step_s or self.step_s)

    @property
    def budget_s(self) -> float:
        """What it took of the budget: its share of the seconds where jobs ran side by side."""
        return self.wall_s / self.shared_by

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> TrialResult:
        """Undo `as_dict`."""
        return TrialResult(**{**values, "checks": tuple(values["checks"])})


def fields_for(settings: Settings, config: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    """The config's fields and the values that give these settings, from what a first trial said of the script.

    The script's rate is that for its reference batch, which its own rule scales: so it is the peak divided by the factor
    that the rule gives for the batch of this trial.

    Args:
        settings: wanted.
        config: the "config" event: roles and values.
        start: the "start" event of a run of the same script.

    Raises:
        ConfigError: the config has no field for a setting, or the rule is one that cannot be computed here.

    Example:
        >>> config = {"fields": {"global_batch": "global_batch", "lr": "lr", "warmup": "warmup_epochs"}}
        >>> start = {"rule": "linear", "reference_batch": 32.0, "num_samples": 1000}
        >>> fields_for(Settings(2, 128, 0.4, None, 500), config, start)
        {'global_batch': 128, 'lr': 0.1, 'warmup_epochs': 0.5}
    """
    from hvd_trainer.optim.scaling import RULES

    names, values = config["fields"], {}
    wanted = {"optimizer": settings.optimizer, "warmup": settings.warmup_samples, "seed": settings.seed}
    missing = [role for role, value in wanted.items() if value is not None and role not in names]
    if missing:
        raise ConfigError(f"the config has no field for {', '.join(missing)}", "optimizer; warmup_epochs, warmup_steps or warmup_samples; seed", "add the field, or leave it out of the search")
    batch = settings.global_batch or start["global_batch"]
    if settings.global_batch is not None:
        values[names["global_batch"]] = batch
    if settings.peak_lr is not None:
        rule = start["rule"]
        if rule == "fixed":
            factor = start["lr_scale"]
        elif rule in RULES:
            reference = start["reference_batch"]
            factor = RULES[rule].factor(batch, reference if reference is not None else batch / settings.ranks)
        else:
            raise ConfigError(f"the script's lr_scaling is {rule!r}, a rule whose factor changes", f"a number, {', '.join(RULES)}", 'lr_scaling="linear" while tuning')
        values[names["lr"]] = settings.peak_lr / factor
    if settings.seed is not None:
        values[names["seed"]] = settings.seed
    if settings.optimizer is not None:
        values[names["optimizer"]] = settings.optimizer
    if settings.warmup_samples is not None:
        name = names["warmup"]
        unit = {"warmup_epochs": start.get("num_samples"), "warmup_steps": batch, "warmup_samples": 1}[name]
        if not unit:
            raise ConfigError(f"the warm-up is in epochs ({name}), and the length of an epoch is not known", "warmup_steps or warmup_samples", "rename the field and its use")
        length = settings.warmup_samples / unit
        values[name] = length if name == "warmup_epochs" else round(length)
    return values


def result_of(events: Sequence[dict[str, Any]], ended: JobEnd, wall_s: float, fields: dict[str, Any]) -> TrialResult:
    """What a job's events and its end mean.

    Raises:
        ConfigError: the script cannot be a trial: it says so, or it never came to a Trainer.
    """
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        by_kind.setdefault(event["event"], []).append(event)
    errors = sorted(by_kind.get("error", []), key=lambda e: e["kind"] in ("OtherRankEnded", "CollectiveTimeout", "SystemExit"))
    start, checks = by_kind.get("start", [{}])[0], tuple(by_kind.get("check", []))
    known = {
        "wall_s": wall_s, "fields": fields, "start": start, "checks": checks,
        "config": {k: v for k, v in by_kind.get("config", [{}])[0].items() if k != "event"},
        "steps": checks[-1]["step"] if checks else 0, "samples": checks[-1]["samples"] if checks else 0,
        "train_s": checks[-1]["train_s"] if checks else 0.0,
    }  # fmt: skip
    for error in errors:
        if error["kind"] == "TrialRefused":
            raise ConfigError(error["message"])
    if by_kind.get("end"):
        end = by_kind["end"][0]
        known.update({"steps": end.get("step", known["steps"]), "samples": end.get("samples", known["samples"]), "train_s": end.get("train_s", known["train_s"])})
        outcome = OUTCOMES[end["outcome"]]
        reason = end.get("message", "") or {CAP: "the cap of this trial", SCRIPT_END: "the script's own length"}.get(outcome, "")
        if outcome == CAP and known["steps"] < LEAST_STEPS:
            reason = too_few(known["steps"], known["train_s"])
        return TrialResult(outcome, reason, step_s=end.get("step_s"), value=end.get("value"), noise_scale=end.get("noise_scale"), end=end, **known)
    if ended.code is None:
        killed = f"killed after {wall_s:.0f} s"
        return TrialResult(CAP, killed if known["steps"] >= LEAST_STEPS else f"{too_few(known['steps'], known['train_s'])}; {killed}", **known)
    if ended.code == 0 and checks:
        return TrialResult(SCRIPT_END, f"the script stopped itself after {show_count(known['steps'], 'step')} or later (EarlyStop?)", **known)
    if ended.code == 0:
        what = "trained without ht.Trainer(...).fit" if by_kind.get("config") else "never called ht.run(main, config)"
        raise ConfigError(
            f"the script cannot be tuned: it ended well but {what}",
            "a script that trains with ht.Trainer under ht.run(main, config)",
            "move the training into main(comm, config)",
        )
    return TrialResult(FAILED, failure(errors, ended), last_lines=ended.last_lines, **known)


def too_few(steps: int, train_s: float) -> str:
    """Why a trial that a cap ended at once says nothing about its settings.

    Example:
        >>> too_few(1, 12.3), too_few(0, 0.0)
        ('too few steps to judge: 1 in 12.3 s; a larger --budget', 'too few steps to judge: none was seen; a larger --budget')
    """
    return f"too few steps to judge: {f'{steps} in {train_s:.3g} s' if steps else 'none was seen'}; a larger --budget"


def failure(errors: Sequence[dict[str, Any]], ended: JobEnd) -> str:
    """Half a sentence on why a job failed.

    Example:
        >>> failure([], JobEnd(137, "Killed")), failure([{"kind": "ValueError", "message": "no"}], JobEnd(1, ""))
        ('out of memory: a rank was killed (exit code 137)', 'ValueError: no')
    """
    said = f"{errors[0]['kind']}: {errors[0]['message'].splitlines()[0]}" if errors else f"exit code {ended.code}"
    killed = ended.code in (137, -9) or "signal 9" in ended.text.lower()
    if killed and not errors:
        return f"out of memory: a rank was killed (exit code {ended.code})"
    text = (said + ended.last_lines).lower()
    return f"out of memory: {said}" if any(word in text for word in OUT_OF_MEMORY) else said
