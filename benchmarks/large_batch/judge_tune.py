"""What `hvd-trainer tune` recommended against what the grid knows, and what it cost (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from benchmarks.large_batch.cells import mean_steps
from benchmarks.large_batch.judge import FULL_RATES, NO_BAR, TIME, TUNE_COST, Verdict, bests, step_seconds

MOST_RANKS = 2
FITS, DEFAULT = "N x what fits", "script's default"  # labels of tune's trials


def recommended(report: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """{ranks: what was recommended}, as the trial that ran with it was seen to run."""
    found = {}
    for ranks, fields in report.get("recommended", {}).items():
        trial = trial_of(report, int(ranks), fields)
        if trial is None:
            continue
        result = trial["result"]
        start, lr = result["start"], float(fields.get("lr", math.nan))
        samples = (start.get("warmup_steps") or 0) * start["global_batch"]
        found[int(ranks)] = {
            "batch": start["global_batch"],
            "lr": start["peak_lr"],
            "optimizer": start["optimizer"],
            "warmup_samples": round(samples),
            "warmup_from": lr / start["peak_lr"],
            "label": trial["label"],
            "trial_steps": result["steps"],
            "trial_step_s": result["step_s"],
        }
    return found


def trial_of(report: Mapping[str, Any], ranks: int, fields: Mapping[str, Any]) -> Optional[Mapping[str, Any]]:
    """The soonest trial that met the target with the recommended fields."""
    mine = []
    for trial in met_trials(report, ranks):
        values = trial["result"]["config"].get("config", {})
        if all(values.get(name) == value for name, value in fields.items()):
            mine.append(trial)
    return min(mine, key=lambda trial: trial["result"]["steps"] * trial["result"]["step_s"], default=None)


def met_trials(report: Mapping[str, Any], ranks: int) -> list[Mapping[str, Any]]:
    """Those on this number of ranks that came to the target."""
    return [trial for trial in report["trials"] if trial["settings"]["ranks"] == ranks and trial["result"]["outcome"] == "target met" and trial["result"]["step_s"]]


def by_label(report: Mapping[str, Any], ranks: int) -> dict[str, Mapping[str, Any]]:
    """The trials that are always run, by their label ("script's default", "N x what fits", ...), the soonest of each."""
    found: dict[str, Mapping[str, Any]] = {}
    for trial in report["trials"]:
        if trial["settings"]["ranks"] == ranks:
            before = found.get(trial["label"])
            if before is None or to_target_s(trial) < to_target_s(before):
                found[trial["label"]] = trial
    return found


def to_target_s(trial: Mapping[str, Any]) -> float:
    """Steps times the median step; infinite without the target."""
    result = trial["result"]
    return result["steps"] * result["step_s"] if result["outcome"] == "target met" and result["step_s"] else math.inf


def times_to_target(grid: Mapping[str, Any], times: Mapping[str, Any], ranks: int) -> dict[int, float]:
    """{batch: seconds to the target with its best rate on so many ranks}: steps of the grid times measured steps."""
    seconds = step_seconds(times)
    return {batch: best["steps"] * seconds[ranks, batch] for batch, best in bests(grid["cells"]).items() if (ranks, batch) in seconds and math.isfinite(best["steps"])}


def measured(tune: Mapping[str, Any], one: Mapping[str, Any], ranks: int) -> tuple[float, float]:
    """(steps, seconds to the target) of a recommendation, trained again with all seeds and timed as the grid's batches were."""
    cells = [
        cell for cell in tune["cells"]
        if (cell["batch"], cell["lr"], cell["optimizer"], cell["warmup_samples"]) == (one["batch"], one["lr"], one["optimizer"], one["warmup_samples"])
    ]  # fmt: skip
    steps = mean_steps(cells)
    return steps, steps * step_seconds(tune["times"])[ranks, one["batch"]]


def full_grid_s(cells: Iterable[Mapping[str, Any]]) -> float:
    """Seconds of training of a grid with four rates a batch: of each row those around its best, without what it grew by."""
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for cell in cells:
        rows.setdefault(cell["batch"], []).append(cell)
    total = 0.0
    for batch, best in bests(cell for row in rows.values() for cell in row).items():
        rates = sorted({cell["lr"] for cell in rows[batch]})
        begin = max(0, min(rates.index(best["lr"]) - 1, len(rates) - FULL_RATES))
        total += sum(cell["train_s"] for cell in rows[batch] if cell["lr"] in rates[begin : begin + FULL_RATES])
    return total


def full_grid_wall_s(grid: Mapping[str, Any]) -> float:
    """The part of the grid's wall time that the grid with four rates a batch took."""
    return grid["seconds"] * full_grid_s(grid["cells"]) / sum(cell["train_s"] for cell in grid["cells"])


def tune_train_s(report: Mapping[str, Any]) -> float:
    """Core-seconds of training of all trials, one thread a rank; and of phases all that they say they took, on all cores."""
    return sum(trial["result"]["train_s"] * trial["settings"]["ranks"] for trial in report["trials"]) + MOST_RANKS * _walls_s(report.get("phases", {}))


def _walls_s(found: Any) -> float:
    """All `wall_s` in what the phases left."""
    if isinstance(found, Mapping):
        return sum(value if name == "wall_s" and value else _walls_s(value) for name, value in found.items())
    return sum(map(_walls_s, found)) if isinstance(found, (list, tuple)) else 0.0


def speed_up(report: Mapping[str, Any], one: Mapping[str, Any], ranks: int, label: str) -> Verdict:
    """The recommendation against what people do without it, both by tune's own trials."""
    trial = by_label(report, ranks).get(label)
    if trial is None:
        found = "tune did not run it"
    elif math.isfinite(to_target_s(trial)):
        found = f"{to_target_s(trial) / (one['trial_steps'] * one['trial_step_s']):.2f}x"
    else:
        batch = trial["result"]["start"].get("global_batch", trial["settings"]["global_batch"])
        found = f"none: batch {batch}, {trial['result']['outcome']} after {trial['result']['steps']} steps"
    return Verdict(f"speed-up of the recommendation over: {label}, N = {ranks}", NO_BAR, found, None)


def of_tune(tune: Mapping[str, Any], grid: Mapping[str, Any], times: Mapping[str, Any]) -> list[Verdict]:
    """The recommendation for each number of ranks, and the cost."""
    chosen, verdicts = recommended(tune["report"]), []
    for ranks in (1, 2):
        what = f"time to target of tune's recommendation / best of the grid, N = {ranks}"
        known = times_to_target(grid, times, ranks)
        if ranks not in chosen:
            verdicts.append(Verdict(what, f"<= {TIME}x", "nothing recommended", False))
            continue
        steps, seconds = measured(tune, chosen[ranks], ranks)
        best = min(known, key=lambda batch: known[batch])
        ratio = seconds / known[best]
        text = f"{ratio:.2f}x: batch {chosen[ranks]['batch']}, rate {chosen[ranks]['lr']:.3g}: {seconds:.2f} s; best: batch {best}, {known[best]:.2f} s"
        verdicts.append(Verdict(what, f"<= {TIME}x", text, ratio <= TIME))
        verdicts += [speed_up(tune["report"], chosen[ranks], ranks, label) for label in (FITS, DEFAULT)]
    mine_s, grid_s = tune_train_s(tune["report"]), full_grid_s(grid["cells"])
    what = "cost of tune / cost of the grid of 9 x 4 x 2, "
    text = f"{mine_s / grid_s:.2f}: {mine_s:.0f} of {grid_s:.0f} core-seconds"
    verdicts.append(Verdict(what + "training of all trials", f"<= {TUNE_COST}", text, mine_s / grid_s <= TUNE_COST))
    wall_s = full_grid_wall_s(grid)
    text = f"{tune['wall_s'] / wall_s:.2f}: {tune['wall_s']:.0f} of {wall_s:.0f} s, with all starts, phases and evaluations"
    verdicts.append(Verdict(what + "wall time", f"<= {TUNE_COST}", text, tune["wall_s"] / wall_s <= TUNE_COST))
    return verdicts
