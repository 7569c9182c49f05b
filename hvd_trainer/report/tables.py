"""The tables of the report as rows of text, the same for the page and for Markdown (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_trainer.amounts import show_count
from hvd_trainer.durations import show_duration
from hvd_trainer.report.curves import Curves
from hvd_trainer.report.facts import Facts, number
from hvd_trainer.report.say import what_is_lost


@dataclass(frozen=True)
class Table:
    """Text in rows.

    Args:
        columns: their names.
        rows: cells, as many as columns.
        strong: numbers of rows to point out.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: tuple[int, ...] = ()


def lost(facts: Facts, curves: Curves) -> Table:
    """What other ways to choose the batch would have cost."""
    rows, strong = [], []
    for found in what_is_lost(facts, curves):
        if found.way == "recommended":
            strong.append(len(rows))
        times = "" if found.times is None else f"{found.times:.2f}"
        seconds = "" if found.seconds is None else show_duration(found.seconds)
        label = f"{found.label}, one trial" if found.trials == 1 and found.seconds is not None else found.label  # so that nobody takes a ratio for sure
        rows.append((str(found.ranks), found.way, _whole(found.global_batch), _rate(found.peak_lr), seconds, times, label, found.outcome))
    return Table(("ranks", "way", "batch", "peak rate", "to target", "times best", "", "outcome"), tuple(rows), tuple(strong))


def policies(facts: Facts, curves: Curves) -> Table:
    """Time to the target by number of ranks, for three policies."""
    found = curves.policies(facts)
    rows = [
        (str(point.ranks), name, _whole(point.global_batch), _whole(round(point.steps)), show_duration(point.seconds), point.label)
        for ranks in sorted({point.ranks for points in found.values() for point in points})
        for name, points in found.items() for point in points if point.ranks == ranks
    ]  # fmt: skip
    return Table(("ranks", "policy", "batch", "steps", "to target", ""), tuple(rows))


def steps(facts: Facts, curves: Curves) -> Table:
    """Fewest steps at each batch, against the fit and the prediction."""
    rows = []
    for point in curves.points:
        batch = point.global_batch or 1
        fitted = "" if curves.fit is None else f"{curves.fit.steps(batch):,.0f}"
        predicted = "" if curves.predicted is None else f"{curves.predicted.steps(batch):,.0f}"
        factor = "" if curves.predicted is None else f"{curves.predicted.steps(batch) / point.steps:.2f}"
        rows.append((_whole(batch), _whole(point.steps), fitted, predicted, factor, _rate(point.peak_lr), str(point.ranks)))
    return Table(("batch", "fewest steps", "fitted", "predicted", "predicted / measured", "peak rate", "ranks"), tuple(rows))


def trials(facts: Facts) -> Table:
    """All trials, the fastest of each number of ranks first."""
    ordered = sorted(facts.trials, key=lambda trial: (-trial.ranks, trial.seconds, -trial.samples))
    bests = {ranks: facts.best(ranks) for ranks in facts.ranks}
    rows, strong = [], []
    for trial in ordered:
        best = bests[trial.ranks]
        if trial is best:
            strong.append(len(rows))
        times = f"{trial.seconds / facts.seconds(best):.2f}" if best and trial.is_met else ""
        warmup = "" if trial.warmup_steps is None else show_count(round(trial.warmup_steps), "step")
        rows.append((
            str(trial.ranks), trial.label, _whole(trial.global_batch), _rate(trial.peak_lr), trial.optimizer, warmup, trial.outcome,
            _whole(trial.steps), _whole(trial.samples), show_duration(trial.seconds) if trial.is_met else "", times,
        ))  # fmt: skip
    columns = ("ranks", "trial", "batch", "peak rate", "optimizer", "warm-up", "outcome", "steps", "samples", "to target", "times best")
    return Table(columns, tuple(rows), tuple(strong))


def of_phase(facts: Facts, name: str, within: str = "") -> Table:
    """A phase as it stands: a list as rows, a mapping as a row for each name; nothing that is itself long.

    Example:
        >>> of_phase(Facts("", "", None, False, (), {}, {}, {"memory": {"2": {"micro_batch": 512}}}), "memory").rows
        (('2', '512'),)
    """
    found: Any = facts.part(name).get(within) if within else facts.phases.get(name)
    if isinstance(found, Mapping) and found and all(isinstance(value, Mapping) for value in found.values()):
        entries = [{"": key, **value} for key, value in found.items() if isinstance(value, Mapping)]
    elif isinstance(found, Mapping):
        pairs = [(str(key).replace("_", " "), _cell(value)) for key, value in found.items() if _is_short(value)]
        return Table(("", "value"), tuple(pair for pair in pairs if pair[1]))
    else:
        entries = [dict(entry) for entry in facts.entries(name, within)]
    columns = list(dict.fromkeys(key for entry in entries for key, value in entry.items() if _is_short(value)))
    return Table(tuple(str(key).replace("_", " ") for key in columns), tuple(tuple(_cell(entry.get(key)) for key in columns) for entry in entries))


def markdown(table: Table) -> list[str]:
    """Lines of a Markdown table.

    Example:
        >>> markdown(Table(("a", "b"), (("1", "x|y"),)))
        ['| a | b |', '|---|---|', '| 1 | x/y |']
    """
    lines = ["| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    return lines + ["| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) + " |" for row in table.rows]


def _is_short(value: Any) -> bool:
    return not isinstance(value, (Mapping, list, tuple)) or isinstance(value, Sequence) and 0 < len(value) <= 4 and not any(isinstance(v, (Mapping, list)) for v in value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(entry) for entry in value)
    known = number(value)
    if known is None:
        return str(value)
    return f"{known:,.0f}" if known == math.floor(known) and abs(known) < 1e12 else f"{known:.4g}"


def _whole(value: Any) -> str:
    return "" if value is None else f"{value:,}"


def _rate(value: Any) -> str:
    return "" if value is None else f"{value:.3g}"
