"""The README of a record (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.large_batch import judge, judge_tune, plan
from benchmarks.report import table

PICTURES = {"steps.png": "steps over batches", "rates.png": "rates", "noise.png": "noise scale along the runs", "step-times.png": "step times"}


def text(found: Mapping[str, Mapping[str, Any]], pictures: Sequence[str] = ()) -> str:
    """The whole page.

    Args:
        found: {part: its JSON}, at least one.
        pictures: names of the files beside it.
    """
    first = next(iter(found.values()))
    machine, settings = first["machine"], first["settings"]
    model = {"mlp": "MLP 784-128-10", "cnn": "CNN of three convolutions, without batch normalisation"}[settings["model"]]
    lines = [f"# Large batches, measured on {first['date'][:10]}", ""]
    lines += [f"    {command}" for command in dict.fromkeys(part["command"] for part in found.values())]
    lines += ["", f"Fashion-MNIST, 50,000 images to train and {settings['num_valid']:,} others of the training set to validate; {model}, float32, constant rate;",
              f"steps until the validation loss is {settings['target']:g} or less. {machine.get('cpu', 'unknown CPU')}, {machine['cores']} cores; "
              + ", ".join(f"{name} {version}" for name, version in first["versions"].items()) + ".", ""]  # fmt: skip
    if settings["quick"]:
        lines += ["**Made with --quick: few cells, one seed, a small validation set. The verdicts mean nothing.**", ""]
    lines += table(("part", "seconds", "load when it began"), [(name, f"{part['seconds']:.0f}", f"{part['machine']['load'][0]:g}") for name, part in found.items()])
    lines += [f"\n{sum(part['seconds'] for part in found.values()):.0f} s in all.", "", "## The bars", ""]
    lines += table(("measured", "asked for", "found", "verdict"), [(v.what, v.asks, v.found, v.says if v.asks != judge.NO_BAR else "") for v in verdicts(found)])
    for name in pictures:
        lines += ["", f"![{PICTURES[name]}]({name})"]
    for part, write in SECTIONS.items():
        if part in found and all(needed in found for needed in NEEDS.get(part, ())):
            lines += ["", *write(found)]
    return "\n".join(lines) + "\n"


def verdicts(found: Mapping[str, Mapping[str, Any]]) -> list[judge.Verdict]:
    """All that the parts can answer."""
    said = []
    if "grid" in found:
        said += judge.of_grid(found["grid"])
    if "noise" in found and "grid" in found:
        said += judge.of_noise(found["noise"], found["grid"])
    if "rates" in found and "grid" in found:
        said += judge.of_rates(found["rates"], found["grid"])
    if "times" in found:
        said += judge.of_times(found["times"])
    if "division" in found:
        said += judge.of_division(found["division"])
    if all(part in found for part in ("tune", "grid", "times")):
        said += judge_tune.of_tune(found["tune"], found["grid"], found["times"])
    return said


def number(value: float, form: str = ".0f") -> str:
    """A number, or that there is none."""
    return format(value, form) if math.isfinite(value) else "-"


def of_grid(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each batch: its best, the fit, and all rates that were tried."""
    cells, curve = found["grid"]["cells"], judge.fit(found["grid"]["cells"])
    rows = []
    for batch, best in judge.bests(cells).items():
        fitted = f"{curve.steps(batch):.0f} ({best['steps'] / curve.steps(batch):.2f})" if curve is not None else ""
        tried = []
        for lr in sorted({cell["lr"] for cell in cells if cell["batch"] == batch}):
            mine = sorted((cell for cell in cells if (cell["batch"], cell["lr"]) == (batch, lr)), key=lambda cell: cell["seed"])
            tried.append(f"{lr:.3g}: {' '.join(outcome(cell) for cell in mine)}")
        rows.append((str(batch), f"{best['lr']:.3g}", number(best["steps"]), fitted, number(best["steps"] * batch), "; ".join(tried)))
    head = ("batch", "best rate", "steps", "hyperbola (measured / fitted)", "samples", "rate: steps of each seed")
    return ["## Grid", "", "Steps: geometric mean of the seeds. `div`: diverged, `cap`: the cap came before the target. Each training is on one rank;",
            "two at a time, one a rank. That two ranks give the same is shown below.", "", *table(head, rows)]  # fmt: skip


def outcome(cell: Mapping[str, Any]) -> str:
    """Steps, or why there are none."""
    return {"met": str(cell["steps"]), "diverged": f"div@{cell['steps']}"}.get(cell["outcome"], f"cap@{cell['steps']}")


def of_noise(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each noise run, what it predicts, and the same training on one rank."""
    cells, grid = found["noise"]["cells"], found["grid"]
    truth, curve = judge.bests(grid["cells"]), judge.fit(grid["cells"])
    rows = []
    for cell in sorted(cells, key=lambda cell: (cell["batch"], cell["seed"])):
        noise = cell["noise_scale"]
        said = {name: judge.off(each, truth, cell["batch"]) for name, each in judge.curves(cell).items()}
        ratio = f"{noise['mean'] / curve.critical_batch:.2f}" if curve is not None and noise["mean"] else "-"
        rows.append((str(cell["batch"]), str(cell["seed"]), outcome(cell), noise["text"], ratio, *(str(said.get(name) or "-") for name in ("mean", "course"))))
    head = ("batch", "seed", "steps", "noise scale, clock-weighted", "/ fitted critical batch", "other batches predicted", "by the course of it")
    lines = ["## Noise scale from one run", "", f"On 2 ranks with {plan.PARTS_A_RANK} micro-batches each, at the grid's best rate.", "", *table(head, rows)]
    same = [(str(row["batch"]), str(row["seed"]), str(row["alone"]), str(row["together"]), "-" if row["loss"] is None else f"{row['loss']:.1e}") for row in judge.same_as_alone(found["noise"], grid)]
    head = ("batch", "seed", "steps on 1 rank", "on 2 ranks", "validation losses differ by at most, relative")
    said = ["The same trainings in the grid, on one rank. Sums in another order differ in the seventh digit of float32, and such differences grow with",
            "the steps; the section on the divided batch has the first 50."]  # fmt: skip
    return [*lines, "", *said, "", *table(head, same)]


def of_rates(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Each rule from each base."""
    lines = ["## Rates by rule", "", f"Noise scale {found['rates']['noise_scale']:.0f}, from one run at {plan.MAIN_BATCH}. Steps over those of the grid's best rate, of the same seeds;",
             "the noise rule with all seeds, the others with one."]  # fmt: skip
    rows = judge.rule_table(found["rates"], found["grid"])
    for base in sorted({row["base"] for row in rows}, reverse=True):
        lines += ["", f"From the tuned rate at batch {base}:", ""]
        cells: dict[int, list[str]] = {}
        for row in rows:
            if row["base"] == base:
                shown = f"{row['ratio']:.2f}" if math.isfinite(row["ratio"]) else ", ".join(o for o in row["outcomes"] if o != "met")
                cells.setdefault(row["batch"], [f"{row['best_lr']:.3g}"]).append(f"{shown} ({row['lr']:.3g})")
        lines += table(("batch", "grid's rate", *(f"{rule}: steps x (rate)" for rule in plan.RULES)), [(str(batch), *row) for batch, row in cells.items()])
    return lines


def of_times(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Measured and modelled."""
    rows = [(str(row["ranks"]), str(row["batch"]), f"{row['measured_s'] * 1e3:.2f}", f"{row['predicted_s'] * 1e3:.2f}", f"{row['predicted_s'] / row['measured_s'] - 1:+.1%}", "yes" if row["used"] else "no")
            for row in judge.step_table(found["times"])]  # fmt: skip
    return ["## Step times", "", *table(("ranks", "batch", "ms a step", "model", "error", "used in the fit"), rows)]


def of_division(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The ends of the curves."""
    rows = [(f"{cell['ranks']}", str(cell["micro_batch"] or "whole"), *(f"{cell['losses'][at - 1]:.7f}" for at in (1, 10, 50))) for cell in found["division"]["cells"]]
    return [f"## Batch {plan.MAIN_BATCH} divided", "", f"At rate {plan.DIVISION_LR:g}.", "", *table(("ranks", "micro-batch", "loss of step 1", "step 10", "step 50"), rows)]


def of_tune(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was recommended, what it saves, and all trials."""
    tune, grid, times = found["tune"], found["grid"], found["times"]
    report, lines = tune["report"], ["## tune", "", f"    {tune['tune_command']}", ""]
    chosen, rows, saved = judge_tune.recommended(report), [], []
    for ranks in (1, 2):
        for batch, seconds in judge_tune.times_to_target(grid, times, ranks).items():
            rows.append((str(ranks), str(batch), "grid's best rate", number(judge.bests(grid["cells"])[batch]["steps"]), f"{seconds:.2f}"))
        if ranks in chosen:
            one = chosen[ranks]
            steps, seconds = judge_tune.measured(tune, one, ranks)
            rows.append((str(ranks), str(one["batch"]), f"**recommended** ({one['label']}): {one['optimizer']}, {one['lr']:.3g}", number(steps), number(seconds, ".2f")))
            best_s = one["trial_steps"] * one["trial_step_s"]
            for label, trial in judge_tune.by_label(report, ranks).items():
                mine_s, result = judge_tune.to_target_s(trial), trial["result"]
                batch = result["start"].get("global_batch", trial["settings"]["global_batch"])
                times_as_long = f"{mine_s / best_s:.2f}x" if math.isfinite(mine_s) else f"{result['outcome']} after {result['train_s'] / best_s:.2f}x the time"
                saved.append((str(ranks), label, str(batch), result["outcome"], times_as_long))
    lines += table(("ranks", "batch", "rate", "steps, all seeds", "s to target"), rows)
    lines += ["", "How much longer the trials take that are always run, by tune's own measurements (best of each label):", ""]
    lines += table(("ranks", "trial", "batch", "outcome", "time / recommended"), saved)
    lines += ["", *(f"- {sentence}" for sentences in report.get("sentences", {}).values() for sentence in sentences)]
    return lines


def of_optimizers(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A table for each optimizer."""
    lines = ["## Other optimizers", "", "Fewer batches, one seed; rates a factor of two apart."]
    everything = found["optimizers"]
    for name in dict.fromkeys(plan.name_of(cell) for cell in everything["cells"]):
        cells = [cell for cell in everything["cells"] if plan.name_of(cell) == name]
        curve = judge.fit(cells)
        rows = [(str(batch), f"{best['lr']:.3g}" + (" (edge)" if best["on_edge"] else ""), number(best["steps"]), number(curve.steps(batch)) if curve else "-", f"{best['cap_over_best']:.1f}")
                for batch, best in judge.bests(cells).items()]  # fmt: skip
        lines += ["", f"### {name}", "", *table(("batch", "best rate", "steps", "hyperbola", "cap / steps"), rows), ""]
        lines.append(f"- Fit: {curve}." if curve else "- No fit: fewer than three batches came to the target.")
        for cell in everything["noise_cells"]:
            if plan.name_of(cell) == name:
                said = judge.curves(cell).get("mean")
                other = judge.off(said, judge.bests(cells), cell["batch"]) if said else None
                lines.append(f"- Noise scale over one run at {cell['batch']}: {cell['noise_scale']['text']}; other batches predicted from it: {other or '-'}.")
    return lines


SECTIONS = {"grid": of_grid, "noise": of_noise, "rates": of_rates, "times": of_times, "division": of_division, "tune": of_tune, "optimizers": of_optimizers}
NEEDS = {"noise": ("grid",), "rates": ("grid",), "tune": ("grid", "times")}
