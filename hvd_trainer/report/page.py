"""The report as one HTML file that needs nothing else: no script, no font, no picture and no style from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from hvd_trainer.amounts import show_count
from hvd_trainer.durations import show_duration
from hvd_trainer.errors import MissingPartError
from hvd_trainer.report import plots, tables
from hvd_trainer.report.curves import Curves, curves
from hvd_trainer.report.draw import style, svg
from hvd_trainer.report.facts import Facts
from hvd_trainer.report.how import SOONER, TO_GET, too_few
from hvd_trainer.report.say import headline, recommendations
from hvd_trainer.report.tables import Table

TEMPLATE = Path(__file__).with_name("page.html")


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Args:
        title: above it.
        text: what it shows.
        figure: an `<svg>`, or "" where `missing` says why there is none.
        missing: a sentence.
        table: under the figure; None: none.
        folded: whether the table is shown only when asked for.
    """

    title: str
    text: str
    figure: str = ""
    missing: str = ""
    table: Optional[Table] = None
    folded: bool = True


def html(content: Mapping[str, Any]) -> str:
    """The page.

    Args:
        content: a report.json.

    Raises:
        MissingPartError: jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingPartError("the page of the report needs jinja2", fix="pip install jinja2 matplotlib") from error
    facts = Facts.of(content)
    known = curves(facts)
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        facts=facts, headline=headline(facts), recommendations=recommendations(facts, known), yaml=recommended_yaml(facts), start=start_line(facts),
        trials=show_count(len(facts.trials), "trial"), lost=tables.lost(facts, known), sections=sections(facts, known), spent=show_duration(sum(trial.wall_s for trial in facts.trials)),
        budget="" if facts.budget_s is None else show_duration(facts.budget_s), notes=facts.notes,
    )  # fmt: skip


def recommended_yaml(facts: Facts) -> str:
    """recommended.yaml for the largest number of ranks that has one; "" where none has.

    Example:
        >>> recommended_yaml(Facts("", "", None, False, (), {1: {"lr": 0.2}, 2: {"lr": 0.1, "batch": 64}}))
        'lr: 0.1\\nbatch: 64\\n'
    """
    if not facts.recommended:
        return ""
    import yaml

    return "".join(yaml.safe_dump({name: value}) for name, value in facts.recommended[max(facts.recommended)].items())


def start_line(facts: Facts) -> str:
    """How to train with what is recommended: as the search says it, or worked out from an old file.

    Example:
        >>> start_line(Facts("a.py", "", None, False, (), {1: {"lr": 0.2}, 2: {"lr": 0.1}})), start_line(Facts("a.py", "", None, False, (), {}))
        ('mpirun -np 2 python a.py --config FOLDER/recommended.yaml', 'python a.py --config FOLDER/recommended.yaml')
    """
    ranks = max(facts.recommended, default=1)
    start = f"mpirun -np {ranks} python" if ranks > 1 else "python"
    return facts.commands.get(ranks, f"{start} {facts.script} --config FOLDER/recommended.yaml")


def sections(facts: Facts, known: Curves) -> list[Section]:
    """Everything below the first screen, in the order of the page."""
    optimizer, few = f" with {known.optimizer}" if known.optimizer else "", too_few(facts, known)
    noise_missing = f"The gradient noise scale was not measured along a run{_note(facts, 'noise')}. {TO_GET['noise']}"
    if known.noise is not None and len(known.noise.curve) < 2:
        noise_missing = f"There is no noise scale{_note(facts, 'noise')}. {TO_GET['noise']}"
        if known.noise.value:
            noise_missing = f"The noise scale over a run is {known.noise.value:.0f} samples; for a curve the run has too few evaluations: {SOONER}."

    def told(text: str, part: str) -> str:
        return " ".join(each for each in (text, few.get(part, "")) if each)

    with style() as plt:

        def figure(name: str, draw: Callable, says: str) -> str:
            drawn = draw(plt, facts, known)
            return "" if drawn is None else svg(drawn, name, says)

        found = [
            Section(
                "Steps and samples against the batch",
                told(
                    f"Each large point is the trial with the fewest steps{optimizer} at its batch, on any number of ranks. Left of the critical batch twice the "
                    "batch nearly halves the steps; right of it, it nearly doubles the samples.", "steps",
                ),
                figure("steps", plots.steps_and_samples, "Steps and samples to the target against the global batch"),
                f"No trial came to the target, and there is no prediction ({known.why_no_prediction}): {SOONER}.", tables.steps(facts, known),
            ),
            Section(
                "Time against ranks",
                "Three ways to use more ranks: leave the global batch as the script has it; leave the batch of each rank; or choose the best batch for each number "
                "of ranks. Seconds of a step and steps to the target are from fits; above twice the ranks that were measured, it is extrapolated.",
                figure("ranks", plots.time_against_ranks, "Time to the target against the number of ranks for three policies"),
                f"Not drawn: {known.why_no_time}. More trials that meet the target at other batches give both: {SOONER}.", tables.policies(facts, known),
            ),
            Section(
                "Time of a step", told("Median seconds of a step, measured and fitted: a fixed part, a part for each sample of a rank, and communication.", "step"),
                figure("step", plots.step_time, "Time of a step against the global batch"), f"No step was timed. {TO_GET['step_time']}", None,
            ),
            Section(
                "Range test of the rate", _range_text(facts),
                figure("range", plots.range_test, "Training loss against a rising learning rate"), f"No range test was run{_note(facts, 'lr_range')}. {TO_GET['lr_range']}", None,
            ),
            Section(
                "Noise scale over training",
                "How many samples a batch needs before noise and signal of its gradient are equal. It grows as training goes on; what counts for the steps is its mean, "
                "weighted by how far each step brings the training.",
                figure("noise", plots.noise_over_training, "Gradient noise scale along a run"), noise_missing, None,
            ),
            Section(
                "All trials", told(_trials_text(facts), "trials"), figure("trials", plots.all_trials, "All trials by batch and rate, coloured by time to the target"),
                f"No trial was run. {TO_GET['trials']}", tables.trials(facts),
            ),
        ]  # fmt: skip
    return found + _phases(facts, few)


def _phases(facts: Facts, few: Mapping[str, str]) -> list[Section]:
    parts = (
        ("check", "", "Check of the gradient", "One step on all ranks against the same step in one process."),
        ("memory", "", "What fits in memory", "The largest micro-batch of a rank, by number of ranks."),
        ("prediction", "rows", "Predictions", "Made before the search, from the noise scale, the range test and the seconds of a step."),
        ("finalists", "", "Finalists", "The best trials again, with other seeds."),
        ("ranks", "", "What a number of ranks is worth", "The best time on each, against the fewest."),
        ("backends", "", "Backends", "The same step over other ways to communicate."),
    )
    found = []
    for name, within, title, text in parts:
        table = tables.of_phase(facts, name, within)
        missing = "" if table.rows else f"Not part of this report{_note(facts, name)}. {TO_GET[name]}"
        told = " ".join(each for each in (text, few.get(name, "")) if each) if table.rows else ""
        found.append(Section(title, told, "", missing, table if table.rows else None, name == "prediction"))
    return found


def _note(facts: Facts, name: str) -> str:
    """What a phase says of itself, to follow a statement."""
    note = facts.part(name).get("note")
    return f": {note}" if isinstance(note, str) and note else ""


def _range_text(facts: Facts) -> str:
    part = facts.part("lr_range")
    batch, stopped = part.get("global_batch"), part.get("stopped")
    where = f" at batch {batch:,}" if isinstance(batch, int) else ""
    return f"A few steps{where}, each with a higher rate than the one before; the model is put back afterwards." + (f" Ended: {stopped}." if isinstance(stopped, str) and stopped else "")


def _trials_text(facts: Facts) -> str:
    counts: dict[str, int] = {}
    for trial in facts.trials:
        counts[trial.outcome] = counts.get(trial.outcome, 0) + 1
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), key=lambda item: -item[1])) + "." if counts else ""
