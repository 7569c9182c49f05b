"""What a search found: `recommended.yaml`, a table, sentences, and all of it as JSON (pure but for `write`)."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

from hvd_trainer.durations import show_duration
from hvd_trainer.files import write_whole
from hvd_trainer.tune.finalists import best_of, groups_of, median_s
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.start_points import DEFAULT, FITS, LINEAR
from hvd_trainer.tune.target import Target
from hvd_trainer.tune.trial import DIVERGED, MET, SCRIPT_END

COLUMNS = ("trial", "ranks", "batch", "peak rate", "optimizer", "warm-up", "outcome", "steps", "samples", "to target", "best x")
BY_US = "by `hvd-trainer tune`"
NEARER = "a larger --budget, or a target that is nearer"
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
    """

    script: str
    target: Target
    records: tuple[Record, ...]
    budget_s: float
    micro_batch: Optional[int] = None
    interrupted: bool = False
    phases: dict[str, Any] = field(default_factory=dict)

    @property
    def ranks(self) -> list[int]:
        """The numbers of ranks that were tried, the largest first."""
        return sorted({record.settings.ranks for record in self.records}, reverse=True)


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
        start.get("optimizer", record.settings.optimizer or ""), "" if warmup is None else f"{warmup:.0f} steps", result.outcome,
        str(result.steps), str(result.samples), show_duration(seconds) if reached else "", times,
    )  # fmt: skip


def sentences(found: Found, ranks: int) -> list[str]:
    """Why this recommendation, and what the others would have cost."""
    best = best_of(found.records, ranks)
    groups = groups_of(found.records, ranks)
    mine = [record for group in groups for record in group]
    place = f"On {ranks} rank{'s' * (ranks > 1)}"
    if best is None:
        return [f"{place} none of {len(mine)} trials came to {found.target}: {advice([record.result.outcome for record in mine])}."]
    result, start = best.result, best.result.start
    seeds = next(group for group in groups if best in group)
    over = "one seed each" if len(seeds) == 1 else f"by the median over {len(seeds)} seeds, {show_duration(median_s(seeds))}"
    said = [
        f"{place}: batch {start['global_batch']}, peak rate {start['peak_lr']:.4g}, {start['optimizer']}: {found.target} after "
        f"{result.steps} steps, {result.samples} samples and {show_duration(result.to_target_s)} of training (the best of {len(groups)} settings, {over})."
    ]
    for label in (DEFAULT, LINEAR, FITS):
        rows = [record for record in mine if record.label == label]
        for record in rows:
            what = f"{label} (batch {record.result.start.get('global_batch', record.settings.global_batch)})"
            if record.result.outcome == MET:
                mine_s = median_s(next(group for group in groups if record in group))
                said.append(f"{what}: {mine_s / median_s(seeds):.2f} times as long." if math.isfinite(mine_s) else f"{what}: at the target with fewer than half of the seeds.")
            else:
                said.append(f"{what}: {record.result.outcome} after {record.result.steps} steps ({record.result.reason}).")
        if not rows:
            fits = found.micro_batch or found.phases.get("memory", {}).get(str(ranks), {}).get("micro_batch")
            why = "the budget was spent before"
            if label == FITS:
                why = f"{why}; {ranks} x {fits} samples" if fits else "give --micro-batch"
            said.append(f"{label}: not measured ({why}).")
    batches = sorted({record.result.start["global_batch"] for record in mine if record.result.start})
    if len(batches) > 1 and start["global_batch"] in (batches[0], batches[-1]):
        said.append(f"Batch {start['global_batch']} is at the edge of what was tried: a better one may lie beyond.")
    return said


def advice(outcomes: Sequence[str]) -> str:
    """What to change where no trial came to the target: a larger budget helps only those that a cap ended.

    Example:
        >>> advice(["script ended", "script ended"]), advice(["diverged"])
        ('all ended with the script: more epochs, or a target that is nearer', 'all diverged: a lower rate in the script')
    """
    ways = {SCRIPT_END: "all ended with the script: more epochs, or a target that is nearer", DIVERGED: "all diverged: a lower rate in the script"}
    return ways.get(outcomes[0], NEARER) if len(set(outcomes)) == 1 else NEARER


def recommended_fields(record: Record) -> dict[str, Any]:
    """The config's fields that a trial ran with: those that were set, and of the roles also those that the script had.

    Args:
        record: of a trial that met the target.
    """
    fields, values = record.result.config["fields"], record.result.config["config"]
    return {fields[role]: values[fields[role]] for role in ROLES_IN_YAML if role in fields and fields[role] in values}


def yaml_text(found: Found, record: Record, path: Path = Path("recommended.yaml")) -> str:
    """`recommended.yaml`: what the script's `--config` loads.

    Args:
        found: what there is.
        record: the trial that is recommended.
        path: of the file, as the user can type it.
    """
    import yaml

    ranks, start = record.settings.ranks, record.result.start
    launcher = f"mpirun -np {ranks} " if ranks > 1 else ""
    scale = start.get("lr_scale", 1.0)
    rate = f"# The script's own rule ({start['rule']}) makes {start['peak_lr']:.4g} of this rate: x {scale:g} for this batch.\n" if scale != 1.0 and "rule" in start else ""
    comment = "".join(f"# {line}\n" for line in sentences(found, record.settings.ranks))
    values = "".join(yaml.safe_dump({name: value}) for name, value in recommended_fields(record).items())
    return f"# {launcher}python {found.script} --config {path}  ({BY_US})\n{comment}{rate}{values}"


def markdown(found: Found) -> str:
    """The report as a page."""
    lines = [f"# {found.script}: what reaches {found.target} soonest", ""]
    if found.interrupted:
        lines += ["The search was interrupted; the same command goes on.", ""]
    for ranks in found.ranks:
        lines += [f"## {ranks} rank{'s' * (ranks > 1)}", "", *(f"- {sentence}" for sentence in sentences(found, ranks)), ""]
        best = best_of(found.records, ranks)
        lines += ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        mine = [record for record in found.records if record.settings.ranks == ranks]
        lines += ["| " + " | ".join(table_row(record, best)) + " |" for record in sorted(mine, key=lambda r: r.result.to_target_s)]
        lines.append("")
    spent_s = sum(record.result.budget_s for record in found.records)
    lines += [
        f"{len(found.records)} trials took {show_duration(spent_s)} of {show_duration(found.budget_s)}. \"To target\" is steps times the seconds of a step (the "
        "median, or what the fit over all trials says where that is less), without start and evaluations. \"> x\" ended at a cap after x times the best.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def as_json(found: Found) -> dict[str, Any]:
    """All of it; the page reads from here what a trial counts with and which one is the best, and does not work them out again."""
    best = {str(ranks): best_of(found.records, ranks) for ranks in found.ranks}
    median = {ranks: next(median_s(group) for group in groups_of(found.records, int(ranks)) if record in group) for ranks, record in best.items() if record}
    return {
        "script": found.script,
        "target": str(found.target),
        "budget_s": found.budget_s,
        "interrupted": found.interrupted,
        "recommended": {ranks: recommended_fields(record) for ranks, record in best.items() if record},
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
    write_whole(paths[1], json.dumps(without_nan(as_json(found)), indent=1, allow_nan=False) + "\n")
    for path in out.glob("recommended*.yaml"):  # of an earlier search in this folder: it must not stand beside this report
        if BY_US in path.read_text().partition("\n")[0]:
            path.unlink()
    is_first = True
    for ranks in found.ranks:
        best = best_of(found.records, ranks)
        if best is None:
            continue
        names = (["recommended.yaml"] if is_first else []) + ([f"recommended_{ranks}.yaml"] if len(found.ranks) > 1 else [])
        is_first = False
        for name in names:
            write_whole(out / name, yaml_text(found, best, out / name))
            paths.append(out / name)
    return paths
