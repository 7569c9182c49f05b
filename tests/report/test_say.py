"""Each recommendation with its evidence, and what the others would have cost."""

import re

import pytest

from hvd_trainer.report import tables
from hvd_trainer.report.curves import curves
from hvd_trainer.report.facts import Facts
from hvd_trainer.report.say import headline, recommendations, what_is_lost
from tests.report.made_up import report, trial


def said(content):
    facts = Facts.of(content)
    return {each.what: each for each in recommendations(facts, curves(facts))}


def test_six_recommendations_with_numbers():
    found = said(report())
    assert list(found) == ["global batch", "peak rate", "warm-up", "optimizer", "ranks", "backend"]
    best = Facts.of(report()).best(2)
    assert found["global batch"].value == f"{best.global_batch:,}" and "critical batch is" in found["global batch"].why
    assert "noise scale of one run at batch 256 is 195 samples (95 %: 160 to 238)" in found["global batch"].why
    assert "range test at batch 4,096 suggests 0.31" in found["peak rate"].why
    assert "lamb: " in found["optimizer"].why and found["optimizer"].value == "sgd"
    assert "gloo takes 1.58 times as long" in found["backend"].why and found["backend"].value == "mpi"
    assert "(measured, each with its own best batch; one trial each" in found["ranks"].why


def test_what_was_not_measured_is_said():
    found = said(report(with_phases=False))
    assert "No range test" in found["peak rate"].why and "not compared" in found["backend"].why
    content = report()
    content["trials"] = content["trials"][:2]
    found = said(content)
    assert "No hyperbola was fitted: 2 batches" in found["global batch"].why and "edge" in found["global batch"].why
    assert "no other was tried" in found["optimizer"].why and "No lower rate" in found["peak rate"].why


def test_ranks_that_are_predicted_are_labelled():
    content = report()
    for point in content["phases"]["step_time"]["points"]:
        point["step_s"] = 1e-3 * point["global_batch"] / point["ranks"] + 1e-5
    why = said(content)["ranks"].why
    assert "extrapolated, no more than a hint" in why and "every doubling gains 1.5 times or more" in why


def test_a_single_trial_has_no_spread_and_no_plural():
    content = {"target": "loss<=1", "trials": [trial("search", 2, 64, 0.2, 0, steps=1)], "phases": {"backends": [{"backend": "mpi", "step_s": 0.003}]}}
    found = said(content)
    text = " ".join([headline(Facts.of(content)), *(each.why for each in found.values())])
    assert found["global batch"].why.startswith("The only trial on 2 ranks: no spread known. No hyperbola was fitted: 1 batch came to the target")
    assert "of training: 1 step, 64 samples" in text and found["backend"].why.startswith("The only one that was timed: 3 ms a step")
    assert not re.search(r"\b1 (batches|trials|steps|seeds|ranks)\b", text), text
    content["trials"].append(trial("search", 2, 128, 0.2, 1))
    assert "Soonest of 2 trials on 2 ranks; one seed each, no spread known." in said(content)["global batch"].why


@pytest.mark.parametrize(
    ("steps", "seeds", "words"),
    [
        (250, 1, "(measured, each with its own best batch; one trial each, no spread known)."),
        (900, 1, "one trial each, no spread known; more than 2 times on 2 times the ranks: by another batch or rate, or by chance)."),
        (250, 2, "(measured, each with its own best batch)."),
    ],
)
def test_a_speed_up_says_what_it_rests_on(steps, seeds, words):
    trials = [trial("search", ranks, 64, 0.2, 0, steps=number) for ranks, number in ((1, steps), (2, 200)) for _ in range(seeds)]
    for at, each in enumerate(trials):
        each["settings"]["seed"] = at % seeds
    why = said({"target": "loss<=1", "trials": trials})["ranks"].why
    assert words in why, why


def test_headlines():
    assert "1 rank would do: " in headline(Facts.of(report()))
    failed = {"target": "loss<=1", "trials": [trial("search", 4, 64, 9.0, 0)]}
    assert headline(Facts.of(failed)).startswith("The only trial on 4 ranks did not come to loss<=1: it diverged")
    assert headline(Facts.of({})) == "No trial was run." and said(failed) == {}


def test_rows_that_are_always_there():
    facts = Facts.of(report())
    rows = what_is_lost(facts, curves(facts))
    assert [(row.ranks, row.way) for row in rows] == [
        (ranks, way) for ranks in (2, 1) for way in ("recommended", "script's default", "linear rule", "N x what fits in memory")
    ]
    assert [rows[number].trials for number in (0, 1)] == [1, 1] and tables.lost(facts, curves(facts)).rows[1][6] == "measured, one trial"
    assert rows[0].times == 1.0 and rows[1].times > 1.5 and rows[1].label == "measured"
    content = report()
    content["trials"].append(trial("linear rule", 2, 2048, 6.4, 99))
    facts = Facts.of(content)
    assert what_is_lost(facts, curves(facts))[2].outcome == "target met; at batch 2,048 diverged"
    assert rows[3].seconds is None and rows[3].outcome.startswith("diverged after 12 steps")


@pytest.mark.parametrize("with_phases", [True, False])
def test_rows_that_were_not_run_are_predicted_or_say_why(with_phases):
    content = report(with_phases)
    content["trials"] = [t for t in content["trials"] if t["label"] not in ("linear rule", "N x what fits")]
    facts = Facts.of(content)
    rows = {row.way: row for row in what_is_lost(facts, curves(facts)) if row.ranks == 2}
    linear, fits = rows["linear rule"], rows["N x what fits in memory"]
    assert linear.label == "predicted" and linear.global_batch == 64 and linear.seconds > 0 and linear.outcome.startswith("not run")
    if with_phases:
        assert fits.label == "predicted" and fits.global_batch == 8192 and "times the noise rule's rate" in fits.outcome
        content["trials"][3] = trial("search", 2, 64, 9.0, 3)
        facts = Facts.of(content)
        assert "likely diverges, as rate 9 did" in what_is_lost(facts, curves(facts))[3].outcome
    else:
        assert fits.label == "" and fits.seconds is None and "--micro-batch" in fits.outcome


def test_a_default_that_is_there_with_one_seed_of_three():
    content = report()
    content["trials"][0]["settings"]["seed"] = None
    for seed in (1, 2):
        other = trial("another seed", 2, 32, 0.1, 90 + seed, outcome="cap reached")
        other["settings"] = {**content["trials"][0]["settings"], "seed": seed}
        content["trials"].append(other)
    facts = Facts.of(content)
    row = what_is_lost(facts, curves(facts))[1]
    assert row.way == "script's default" and row.seconds is None and "fewer than half of the seeds" in row.outcome
    content["trials"] = [t for t in content["trials"] if t["settings"]["global_batch"] is None and t["settings"]["ranks"] == 2]
    facts = Facts.of(content)
    assert facts.best(2) is None and headline(facts).startswith("None of 3 trials")


def test_where_only_fewer_ranks_came_to_the_target_they_are_recommended():
    content = report()
    for each in content["trials"]:
        if each["settings"]["ranks"] == 2:
            each["result"]["outcome"] = "cap reached"
    recommended, sentence = said(content), headline(Facts.of(content))
    assert sentence.startswith("On 1 rank, batch ") and "None of" in sentence and "on 2 ranks" in sentence
    assert len(recommended) == 6
