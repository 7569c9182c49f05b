"""What the measurements say, and whether it is what was asked for (pure)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from benchmarks.large_batch import plan
from benchmarks.large_batch.cells import DIVERGED, MET, Cell, best_of_row, mean_steps
from hvd_trainer.cost import fit_step
from hvd_trainer.cost.fit_hyperbola import Comparison, HyperbolaFit, compare, fit_hyperbola
from hvd_trainer.cost.samples import GRADIENT, LOCAL, STEP, StepSample
from hvd_trainer.cost.steps_to_target import PredictedCurve, from_noise, from_noise_curve

RESIDUAL, NOISE, CURVE_WORST, CURVE_MEAN = 1.3, 2.0, 2.0, 1.3
RULE, TIME, STEP_TIME, TUNE_COST = 1.3, 1.2, 0.10, 0.35
GAP, CAP = 0.05, 3.0
SAME_LOSS = 1e-5
NO_BAR = "no bar"
FULL_RATES = 4  # of each batch, in the grid that tune's cost is compared with
CELL_FIELDS = {field.name for field in dataclasses.fields(Cell)}


@dataclass(frozen=True)
class Verdict:
    """A bar.

    Args:
        what: is measured.
        asks: the bar, in words.
        found: what was measured, in words.
        met: None: not measured.
    """

    what: str
    asks: str
    found: str
    met: Optional[bool]

    @property
    def says(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "**missed**"


def key_of(cell: Mapping[str, Any]) -> str:
    """Of a result, as `Cell.key`."""
    return Cell(**{name: value for name, value in cell.items() if name in CELL_FIELDS}).key


def bests(cells: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """{batch: its row's best}, of cells of one optimizer."""
    rows: dict[int, list[Mapping[str, Any]]] = {}
    for cell in cells:
        rows.setdefault(cell["batch"], []).append(cell)
    return {batch: best_of_row(rows[batch]) for batch in sorted(rows)}


# -- grid ------------------------------------------------------------------------------------------------------------


def fit(cells: Iterable[Mapping[str, Any]]) -> Optional[HyperbolaFit]:
    """The hyperbola through the best of each batch; None: fewer than three batches came to the target."""
    found = {batch: best["steps"] for batch, best in bests(cells).items() if math.isfinite(best["steps"])}
    return fit_hyperbola(list(found), list(found.values())) if len(found) > 2 else None


def of_grid(grid: Mapping[str, Any]) -> list[Verdict]:
    """That the truth is one, and that it is a hyperbola."""
    found, curve = bests(grid["cells"]), fit(grid["cells"])
    edges = [batch for batch, best in found.items() if best["on_edge"]]
    gaps = [best["gap"] for best in found.values()]
    unknown = sum(gap is None for gap in gaps)
    largest = max((gap for gap in gaps if gap is not None), default=math.nan)
    cap = min(best["cap_over_best"] for best in found.values())
    gap_text = f"{largest:.1%}" + (f", unknown of {unknown}" if unknown else "")
    verdicts = [
        Verdict("best rate on the edge of its grid", "never", f"at batches {edges}" if edges else f"never, of {len(found)} batches", not edges),
        Verdict("step cap / best steps, smallest", f">= {CAP:g}", f"{cap:.2f}", cap >= CAP),
        Verdict("steps between two looks at the validation set, largest", f"<= {GAP:.0%}", gap_text, largest <= GAP and not unknown),
    ]
    if curve is not None:
        text = f"{curve.worst:.2f}x; critical batch {curve.critical_batch:.0f} ({curve.low:.0f} to {curve.high:.0f}), smallest steps {curve.curve.smallest_steps:.0f}"
        verdicts.append(Verdict("steps over batches against the fitted hyperbola, worst", f"<= {RESIDUAL}x", text, curve.worst <= RESIDUAL))
    return verdicts


# -- noise -----------------------------------------------------------------------------------------------------------


def main_noise_run(cells: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The one that the rules are scaled with."""
    return min(cells, key=lambda cell: (abs(cell["batch"] - plan.MAIN_BATCH), cell["seed"]))


def curves(run: Mapping[str, Any]) -> dict[str, PredictedCurve]:
    """The whole curve from one run, from its mean noise scale and from the course of it."""
    noise, found = run["noise_scale"], {}
    if run["outcome"] == MET and noise["mean"] is not None:
        found["mean"] = from_noise(run["batch"], run["steps"], noise["mean"], noise["low"], noise["high"])
        points = [(step, value) for step, value in run["noise_windows"]]
        if any(value is not None for _, value in points):
            found["course"] = from_noise_curve(run["batch"], points, run["steps"], noise["low"], noise["high"])
    return found


def off(curve: PredictedCurve, truth: Mapping[int, Mapping[str, Any]], without: int) -> Optional[Comparison]:
    """Predicted against the grid's best at all batches but one."""
    known = {batch: best["steps"] for batch, best in truth.items() if math.isfinite(best["steps"]) and batch != without}
    return compare([curve.steps(batch) for batch in known], list(known.values())) if known else None


def of_noise(noise: Mapping[str, Any], grid: Mapping[str, Any]) -> list[Verdict]:
    """One short run instead of a grid."""
    truth, curve = bests(grid["cells"]), fit(grid["cells"])
    verdicts = []
    values = [cell["noise_scale"]["mean"] for cell in noise["cells"]]
    if curve is not None and None not in values:
        factors = [max(value / curve.critical_batch, curve.critical_batch / value) for value in values]
        mine = main_noise_run(noise["cells"])["noise_scale"]["mean"]
        batch = main_noise_run(noise["cells"])["batch"]
        text = f"{mine / curve.critical_batch:.2f}x from batch {batch}; {min(values):.0f} to {max(values):.0f} in {len(values)} runs, worst {max(factors):.2f}x"
        verdicts.append(Verdict("noise scale of one short run / fitted critical batch", f"within {NOISE:g}x", text, max(factors) <= NOISE))
    elif None in values:
        verdicts.append(Verdict("noise scale of one short run / fitted critical batch", f"within {NOISE:g}x", "undetermined", False))
    for batch in sorted({cell["batch"] for cell in noise["cells"]}):
        found = [off(curve, truth, batch) for cell in noise["cells"] if cell["batch"] == batch for name, curve in curves(cell).items() if name == "mean"]
        known = [each for each in found if each is not None]
        if known:
            worst, mean = max(each.worst for each in known), max(each.geometric_mean for each in known)
            text = f"worst {worst:.2f}x, geometric mean {mean:.2f}x (the worse of {len(known)} seeds)"
            asks = f"worst <= {CURVE_WORST:g}x, geometric mean <= {CURVE_MEAN}x"
            verdicts.append(Verdict(f"all other batches predicted from one run at {batch}", asks, text, worst <= CURVE_WORST and mean <= CURVE_MEAN))
    return verdicts


def same_as_alone(noise: Mapping[str, Any], grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The noise runs, on two ranks with micro-batches, beside the same cells of the grid, on one rank."""
    alone = {(cell["batch"], cell["lr"], cell["seed"]): cell for cell in grid["cells"]}
    found = []
    for cell in noise["cells"]:
        other = alone.get((cell["batch"], cell["lr"], cell["seed"]))
        if other is not None:
            common = dict(other["checks"])
            differences = [abs(value - common[step]) / common[step] for step, value in cell["checks"] if step in common]
            found.append({"batch": cell["batch"], "seed": cell["seed"], "alone": other["steps"], "together": cell["steps"], "loss": max(differences, default=None)})
    return found


# -- rules -----------------------------------------------------------------------------------------------------------


def rule_table(rates: Mapping[str, Any], grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each base batch, rule and batch: the rate, how it ended, and its steps over the grid's best."""
    truth = bests(grid["cells"])
    found = []
    for base, rules in rates["rates"].items():
        for rule, by_batch in rules.items():
            for batch, lr in by_batch.items():
                rate = float(f"{lr:.4g}")
                mine = [cell for cell in rates["cells"] if cell["batch"] == int(batch) and cell["lr"] == rate]
                mine = mine if rule == "noise rule" else mine[:1] if mine else []
                best = truth[int(batch)]
                against = best["steps"] if len(mine) > 1 else best["by_seed"][0]
                outcomes = sorted({cell["outcome"] for cell in mine})
                steps = mean_steps(mine)
                found.append({"base": int(base), "rule": rule, "batch": int(batch), "lr": lr, "best_lr": best["lr"], "outcomes": outcomes, "steps": steps, "ratio": steps / against})
    return found


def of_rates(rates: Mapping[str, Any], grid: Mapping[str, Any]) -> list[Verdict]:
    """The noise rule from the main batch."""
    rows = [row for row in rule_table(rates, grid) if row["base"] == plan.MAIN_BATCH]
    verdicts = []
    for rule in plan.RULES:
        mine = [row for row in rows if row["rule"] == rule]
        worst = max(mine, key=lambda row: row["ratio"])
        diverged = [row["batch"] for row in mine if DIVERGED in row["outcomes"]]
        capped = [row["batch"] for row in mine if not math.isfinite(row["ratio"]) and row["batch"] not in diverged]
        text = "; ".join([
            f"worst {worst['ratio']:.2f}x at batch {worst['batch']}" if math.isfinite(worst["ratio"]) else "the target not met everywhere",
            f"diverged at {diverged}" if diverged else "no divergence", *([f"cap reached at {capped}"] if capped else []),
        ])  # fmt: skip
        if rule == "noise rule":
            verdicts.append(Verdict(f"rate by the noise rule from {plan.MAIN_BATCH}: steps / grid's best", f"<= {RULE}x, no divergence", text, worst["ratio"] <= RULE and not diverged))
        else:
            verdicts.append(Verdict(f"beside it: the {rule} rule", NO_BAR, text, None))
    return verdicts


# -- step times ------------------------------------------------------------------------------------------------------


def samples_of(times: Mapping[str, Any]) -> list[StepSample]:
    """As the step model wants them; the micro-batch is a rank's share."""
    return [StepSample(kind, batch // ranks, 1, 1, ranks, tuple(seconds)) for kind, batch, ranks, seconds in times["steps"]]


def step_table(times: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The model fitted to some sizes, on all of them."""
    samples = samples_of(times)
    fitted = [s for s in samples if s.micro_batch * s.ranks_per_node in plan.TIMED]
    sync_s = message_s(times)
    local = fit_step.fit_compute([s for s in fitted if s.ranks_per_node == 1], num_draws=2)
    whole = fit_step.fit_overlap(local, [s for s in fitted if s.kind == STEP], lambda nodes, n: sync_s, num_draws=2)
    found = []
    for sample in samples:
        if sample.kind == GRADIENT:
            continue
        model = local if sample.kind == LOCAL else whole
        predicted_s = model.model.seconds(sample.micro_batch, 1, 0.0 if sample.kind == LOCAL else sync_s)
        batch = sample.micro_batch * sample.ranks_per_node
        found.append({"ranks": sample.ranks_per_node, "batch": batch, "used": batch in plan.TIMED, "measured_s": sample.typical_s, "predicted_s": predicted_s})
    return found


def message_s(times: Mapping[str, Any]) -> float:
    """Median seconds of the message that holds all gradients: the one whose size is no power of two."""
    own = [seconds for sizes, seconds in times["messages"] if len(sizes) == 1 and sizes[0] & (sizes[0] - 1)]
    seconds = sorted(own[0])
    return seconds[len(seconds) // 2]


def of_times(times: Mapping[str, Any]) -> list[Verdict]:
    """The held-out sizes."""
    errors = sorted(abs(row["predicted_s"] / row["measured_s"] - 1) for row in step_table(times) if not row["used"])
    if not errors:
        return []
    median = errors[len(errors) // 2] if len(errors) % 2 else (errors[len(errors) // 2 - 1] + errors[len(errors) // 2]) / 2
    text = f"{median:.1%}, worst {errors[-1]:.1%}, of {len(errors)} points"
    return [Verdict("step time on sizes that were not fitted, median error", f"<= {STEP_TIME:.0%}", text, median <= STEP_TIME)]


def step_seconds(times: Mapping[str, Any]) -> dict[tuple[int, int], float]:
    """{(ranks, batch): median seconds of a step}."""
    return {(ranks, batch): sorted(seconds)[len(seconds) // 2] for kind, batch, ranks, seconds in times["steps"] if kind in (LOCAL, STEP)}


# -- division --------------------------------------------------------------------------------------------------------


def of_division(division: Mapping[str, Any]) -> list[Verdict]:
    """The curves beside that of one rank."""
    cells = {(cell["ranks"], cell["micro_batch"]): cell["losses"] for cell in division["cells"]}
    alone = cells[plan.DIVISIONS[0]]
    differences = {division: max(abs(a - b) / abs(a) for a, b in zip(alone, cells[division])) for division in plan.DIVISIONS[1:]}
    text = ", ".join(f"{ranks} x {plan.MAIN_BATCH // ranks if micro is None else f'({plan.MAIN_BATCH // ranks // micro} x {micro})'}: {value:.1e}" for (ranks, micro), value in differences.items())
    ok = max(differences.values()) <= SAME_LOSS and all(len(losses) == plan.DIVISION_STEPS for losses in cells.values())
    return [Verdict(f"batch {plan.MAIN_BATCH} as 1 x {plan.MAIN_BATCH} and divided: losses of {plan.DIVISION_STEPS} steps, relative", f"<= {SAME_LOSS:g}", text, ok)]
