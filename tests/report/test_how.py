"""A part of the page without data says what is missing and how to get it; one with few says that they are few."""

import pytest

from hvd_trainer.report.curves import curves
from hvd_trainer.report.facts import Facts
from hvd_trainer.report.how import too_few
from hvd_trainer.report.page import sections
from tests.report.made_up import report, trial


def of(content):
    facts = Facts.of(content)
    return facts, curves(facts)


def test_every_part_without_data_names_an_option_or_a_change(monkeypatch):
    facts, known = of({"script": "a.py", "target": "loss<=1", "trials": []})
    found = sections(facts, known)
    assert len(found) == 12
    for section in found:
        assert not section.figure and section.missing, section.title
        assert "--" in section.missing or "config" in section.missing, section


def test_a_whole_report_is_not_called_small():
    assert too_few(*of(report())) == {}


@pytest.mark.parametrize(
    ("trials", "phases", "part", "words"),
    [
        ([trial("script's default", 2, 32, 0.1, 0)], {}, "trials", "1 trial in all is too few"),
        ([trial("search", 2, 32, 0.1, 0), trial("search", 2, 128, 0.3, 1)], {}, "steps", "2 batches came to the target, and a fit needs 3"),
        ([trial("search", 2, batch, 0.1, 0, outcome="target met") for batch in (2, 4, 8)], {}, "steps", "undetermined"),
        ([trial("search", 2, 32, 0.1, 0)], {}, "step", "three points"),
        ([trial("search", 2, 32, 0.1, 0)], {"ranks": [{"ranks": 2, "seconds": 1.0}]}, "ranks", "--ranks 1,2"),
    ],
)
def test_few_data_are_said(trials, phases, part, words):
    assert words in too_few(*of({"trials": trials, "phases": phases}))[part]


def test_a_curve_of_one_point_is_no_curve():
    content = report()
    content["phases"]["noise"]["curve"] = content["phases"]["noise"]["curve"][:1]
    noise = next(section for section in sections(*of(content)) if section.title.startswith("Noise"))
    assert not noise.figure and "195 samples; for a curve the run has too few evaluations" in noise.missing
