"""What a search found: `recommended.yaml`, a table, sentences, and all of it as JSON (pure but for `write`)."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.durations import show_duration
from hvd_trainer.files import write_whole
from hvd_trainer.tune import next_step, reasons
from hvd_trainer.tune.finalists import best_of, groups_of, median_s
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.start_points import DEFAULT, FITS, LINEAR
from hvd_trainer.tune.target import Target
from hvd_trainer.tune.trial import MET

COLUMNS = ("trial", "ranks", "batch", "peak rate", "optimizer", "warm-up", "outcome", "steps", "samples", "to target", "best x")
BY_US = "by `hvd-trainer tune`"
ROLES_IN_YAML = ("global_batch", "lr", "optimizer", "warmup")


@dataclass(frozen=True)
class Found:
    """What there is to report.

    Args:
        script: as it was named.
        target: what was asked for.
        records: all finished trials.
        budget_s: seconds.
        micro_batch: that fits on a rank; None: not known.
        interrupted: whether there is more to do.
        phases: what was measured and predicted, as `Search.phases` gives it.
        refused: whether an error ended the search.
        at_trials: numbers of ranks whose part of --trials is used up.
        arguments: of the script.
    """

    script: str
    target: Target
    records: tuple[Record, ...]
    budget_s: float
    micro_batch: Optional[int] = None
    interrupted: bool = False
    phases: dict[str, Any] = field(default_factory=dict)
    refused: bool = False
    at_trials: frozenset[int] = frozenset()
    arguments: tuple[str, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """The numbers of ranks that were tried, the largest first."""
        return sorted({record.settings.ranks for record in self.records}, reverse=True)

    def why_missing(self, ranks: int) -> str:
        """Why what was to be run on so many ranks was not."""
        if self.interrupted:
            return reasons.INTERRUPTED
        if self.refused:
            return reasons.REFUSED
        return reasons.TRIALS if ranks in self.at_trials else reasons.BUDGET


def table_row(record: Record, best: Optional[Record]) -> tuple[str, ...]:
    """The cells of a trial, in the order of `COLUMNS`."""
    result, start, seconds = record.result, record.result.start, record.result.to_target_s
    batch = start.get("global_batch", record.settings.global_batch)
    rate = start.get("peak_lr", record.settings.peak_lr)
    warmup = start.get("warmup_steps")
    reached = math.isfinite(seconds)
    if best is None:
        times = ""
    elif reached:
        times = f"{seconds / best.result.to_target_s:.2f}"
    else:
        times = f"> {result.train_s / best.result.to_target_s:.2f}" if result.outcome != "failed" and result.outcome != "diverged" else "never"
    return (
        record.label, str(record.settings.ranks), "" if batch is None else str(batch), "" if rate is None else f"{rate:.3g}",
        start.get("optimizer", record.settings.optimizer or ""), "" if warmup is None else show_count(round(warmup), "step"), result.outcome,
        str(result.steps), str(result.samples), show_duration(seconds) if reached else "", times,
    )  # fmt: skip


def sentences(found: Found, ranks: int) -> list[str]:
    """Why this recommendation, and what the others would have cost."""
    best = best_of(found.records, ranks)
    groups = groups_of(found.records, ranks)
    mine = [record for group in groups for record in group]
    place = f"On {show_count(ranks, 'rank')}"
    if not mine:
        return [f"{place} no trial was run: {found.why_missing(ranks)}."]
    if best is None:
        missed = f"none of {len(mine)} trials came" if len(mine) > 1 else "the only trial did not come"
        return [f"{place} {missed} to {found.target}: {reasons.advice([record.result.outcome for record in mine])}."]
    result, start = best.result, best.result.start
    seeds = next(group for group in groups if best in group)
    over = f"one trial{' each' * (len(groups) > 1)}, no spread known" if len(seeds) == 1 else f"by the median over {len(seeds)} seeds, {show_duration(median_s(seeds))}"
    said = [
        f"{place}: batch {start['global_batch']}, peak rate {start['peak_lr']:.4g}, {start['optimizer']}: {found.target} after "
        f"{show_count(result.steps, 'step')}, {show_count(result.samples, 'sample')} and {show_duration(result.to_target_s)} of training ({place_of(len(groups))}, {over})."
    ]
    for label in (DEFAULT, LINEAR, FITS):
        rows = [record for record in mine if record.label == label]
        for record in rows:
            what = f"{label} (batch {record.result.start.get('global_batch', record.settings.global_batch)})"
            if record in seeds:
                said.append(f"{what}: this is it.")
            elif record.result.outcome == MET:
                mine_s = median_s(next(group for group in groups if record in group))
                said.append(f"{what}: {mine_s / median_s(seeds):.2f} times as long." if math.isfinite(mine_s) else f"{what}: at the target with fewer than half of the seeds.")
            else:
                said.append(f"{what}: {record.result.outcome} after {show_count(record.result.steps, 'step')} ({record.result.reason}).")
        if not rows:
            fits = found.micro_batch or found.phases.get("memory", {}).get(str(ranks), {}).get("micro_batch")
            said.append(f"{label}: {reasons.not_measured(label, found.why_missing(ranks), ranks, fits, mine)}.")
    batches = sorted({record.result.start["global_batch"] for record in mine if record.result.start})
    if len(batches) > 1 and start["global_batch"] in (batches[0], batches[-1]):
        said.append(f"Batch {start['global_batch']} is at the edge of what was tried: a better one may lie beyond.")
    return said


def place_of(num_settings: int) -> str:
    """How good the best of so many is."""
    return f"the best of {num_settings} settings" if num_settings > 1 else "the only settings that were tried"


def recommended_fields(record: Record) -> dict[str, Any]:
    """The config's fields that a trial ran with: those that were set, and of the roles also those that the script had.

    Args:
        record: of a trial that met the target.
    """
    fields, values = record.result.config["fields"], record.result.config["config"]
    return {fields[role]: values[fields[role]] for role in ROLES_IN_YAML if role in fields and fields[role] in values}


def next_command(found: Found, record: Record, path: Path) -> str:
    """How to train with a recommendation, checkpoints in a folder of their own beside the file.

    Args:
        found: what there is.
        record: the trial that is recommended.
        path: of its yaml file, as the user can type it.
    """
    return next_step.command(found.script, found.arguments, record, path, next_step.fresh(path))


def yaml_text(found: Found, record: Record, path: Path = Path("recommended.yaml")) -> str:
    """`recommended.yaml`: what the script's `--config` loads.

    Args:
        found: what there is.
        record: the trial that is recommended.
        path: of the file, as the user can type it.
    """
    import yaml

    start = record.result.start
    scale = start.get("lr_scale", 1.0)
    rate = f"# The script's own rule ({start['rule']}) makes {start['peak_lr']:.4g} of this rate: x {scale:g} for this batch.\n" if scale != 1.0 and "rule" in start else ""
    comment = "".join(f"# {line}\n" for line in sentences(found, record.settings.ranks))
    values = "".join(yaml.safe_dump({name: value}) for name, value in recommended_fields(record).items())
    taken = "".join(f"# {line}\n" for line in next_step.about_fixed_folders(record))
    return f"# {next_command(found, record, path)}  ({BY_US})\n{taken}{comment}{rate}{values}"


def markdown(found: Found) -> str:
    """The report as a page."""
    lines = [f"# {found.script}: what reaches {found.target} soonest", ""]
    if found.interrupted:
        lines += ["The search was interrupted; the same command goes on.", ""]
    if found.refused:
        lines += ["An error ended the search; what was finished before is here.", ""]
    for ranks in found.ranks:
        lines += [f"## {show_count(ranks, 'rank')}", "", *(f"- {sentence}" for sentence in sentences(found, ranks)), ""]
        best = best_of(found.records, ranks)
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        mine = [record for record in found.records if record.settings.ranks == ranks]
        lines += ["| " + " | ".join(table_row(record, best)) + " |" for record in sorted(mine, key=lambda r: r.result.to_target_s)]
        lines.append("")
    spent_s = sum(record.result.budget_s for record in found.records)
    lines += [
        f"{show_count(len(found.records), 'trial')} took {show_duration(spent_s)} of {show_duration(found.budget_s)}. \"To target\" is steps times the seconds of a step (the "
        "median, or what the fit over all trials says where that is less), without start and evaluations. \"> x\" ended at a cap after x times the best.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def as_json(found: Found, out: Path) -> dict[str, Any]:
    """All of it; the page reads from here what a trial counts with and which one is the best, and does not work them out again.

    Args:
        found: what there is.
        out: folder of the report.
    """
    best = {str(ranks): best_of(found.records, ranks) for ranks in found.ranks}
    median = {ranks: next(median_s(group) for group in groups_of(found.records, int(ranks)) if record in group) for ranks, record in best.items() if record}
    return {
        "script": found.script,
        "target": str(found.target),
        "budget_s": found.budget_s,
        "interrupted": found.interrupted,
        "recommended": {ranks: recommended_fields(record) for ranks, record in best.items() if record},
        "next": {ranks: next_command(found, record, out / yaml_names(found)[int(ranks)][0]) for ranks, record in best.items() if record},
        "best": {ranks: {"trial": found.records.index(record), "seconds": median[ranks]} for ranks, record in best.items() if record},
        "sentences": {str(ranks): sentences(found, ranks) for ranks in found.ranks},
        "phases": found.phases,
        "trials": [{**asdict(record), "result": record.result.as_dict(), "to_target_s": record.result.to_target_s} for record in found.records],
    }


def without_nan(value: Any) -> Any:
    """The same with null for what JSON has no number for: a script's config may say `clip = inf`.

    Example:
        >>> without_nan({"clip": float("inf"), "losses": [1.0, float("nan")]})
        {'clip': None, 'losses': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: without_nan(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(found: Found, out: Path) -> list[Path]:
    """Write the files and return their paths: recommended.yaml for the largest number of ranks, recommended_N.yaml for each.

    Args:
        found: what there is.
        out: folder; it is made.
    """
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / "report.md", out / "report.json"]
    write_whole(paths[0], markdown(found))
    write_whole(paths[1], json.dumps(without_nan(as_json(found, out)), indent=1, allow_nan=False) + "\n")
    for path in out.glob("recommended*.yaml"):  # of an earlier search in this folder: it must not stand beside this report
        if BY_US in path.read_text().partition("\n")[0]:
            path.unlink()
    for ranks, names in yaml_names(found).items():
        for name in names:
            write_whole(out / name, yaml_text(found, best_of(found.records, ranks), out / name))
            paths.append(out / name)
    return paths


def next_lines(found: Found, out: Path) -> list[str]:
    """What to type next, for the largest number of ranks that has a recommendation; none while the search has more to do."""
    names = yaml_names(found)
    if not names or found.interrupted:
        return []
    ranks = max(names)
    record = best_of(found.records, ranks)
    return ["to train with it:", f"  {next_command(found, record, out / names[ranks][0])}", *next_step.about_fixed_folders(record)]


def yaml_names(found: Found) -> dict[int, list[str]]:
    """Files of each number of ranks that has a recommendation, the largest first: recommended.yaml is that one's."""
    met = [ranks for ranks in found.ranks if best_of(found.records, ranks) is not None]
    own = {ranks: [f"recommended_{ranks}.yaml"] if len(found.ranks) > 1 else [] for ranks in met}
    return {ranks: (["recommended.yaml"] if ranks == met[0] else []) + names for ranks, names in own.items()}
