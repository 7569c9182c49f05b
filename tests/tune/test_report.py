"""The files that a search leaves."""

import json
from dataclasses import replace

import pytest
import yaml

from hvd_trainer.report.facts import Facts
from hvd_trainer.train.config import override
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.report import COLUMNS, Found, markdown, next_lines, sentences, table_row, write
from hvd_trainer.tune.start_points import DEFAULT, FITS, LINEAR
from hvd_trainer.tune.target import parse_target
from hvd_trainer.tune.trial import CAP, DIVERGED, MET, SCRIPT_END, Settings, TrialResult


def record(label, batch, outcome, steps, ranks=2, lr=0.00001):
    config = {"fields": {"lr": "lr", "global_batch": "batch"}, "config": {"lr": lr, "batch": batch, "epochs": 3}}
    start = {"global_batch": batch, "peak_lr": lr, "optimizer": "sgd", "warmup_steps": 3.0}
    step_s = 0.01
    result = TrialResult(outcome, "why", steps, steps * batch, steps * step_s, step_s, 0.4, 2.0, {}, start, config)
    return Record(label, Settings(ranks, batch, lr), result, 0.0)


BEST = record("search", 128, MET, 100)
FOUND = Found("a.py", parse_target("val_loss<=0.4"), (record(DEFAULT, 64, MET, 150), record(LINEAR, 256, DIVERGED, 7), record(FITS, 512, CAP, 400), BEST), 60.0, 256)


def test_says_what_the_others_would_have_cost():
    text = "\n".join(sentences(FOUND, 2))
    assert "batch 128" in text and f"{DEFAULT} (batch 64): 1.50 times as long" in text
    assert f"{LINEAR} (batch 256): diverged after 7 steps" in text and f"{FITS} (batch 512): cap reached after 400 steps" in text
    assert "edge" not in text
    at_edge = Found("a.py", FOUND.target, FOUND.records[:1] + (BEST,), 60.0)
    text = "\n".join(sentences(at_edge, 2))
    assert "at the edge" in text and f"{LINEAR}: not measured (the budget was spent before)" in text and f"{FITS}: not measured (give --micro-batch)" in text
    assert table_row(FOUND.records[2], BEST)[-1] == "> 4.00" and table_row(FOUND.records[1], BEST)[-1] == "never"


def test_recommended_yaml_is_what_the_script_loads(tmp_path):
    paths = write(FOUND, tmp_path / "out")
    path = tmp_path / "out/recommended.yaml"
    assert path in paths and set(yaml.safe_load(path.read_text())) == {"batch", "lr"}
    assert override({"lr": 0.1, "batch": 1, "epochs": 3}, ["--config", str(path)]) == {"lr": 0.00001, "batch": 128, "epochs": 3}


def test_several_numbers_of_ranks_have_a_file_each(tmp_path):
    found = Found("a.py", FOUND.target, (BEST, record("search", 32, MET, 100, ranks=1), record("search", 32, CAP, 100, ranks=4)), 60.0)
    names = {path.name for path in write(found, tmp_path)}
    assert names == {"report.md", "report.json", "recommended.yaml", "recommended_2.yaml", "recommended_1.yaml"}
    assert yaml.safe_load((tmp_path / "recommended.yaml").read_text())["batch"] == 128
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["recommended"] == {"2": {"batch": 128, "lr": 0.00001}, "1": {"batch": 32, "lr": 0.00001}} and len(content["trials"]) == 3
    assert content["sentences"]["4"] == ["On 4 ranks the only trial did not come to val_loss<=0.4: a larger --budget, or a target that is nearer."]
    assert content["next"]["2"] == f"hvd-trainer launch -np 2 a.py --config {tmp_path}/recommended.yaml" and content["next"]["1"] == f"python a.py --config {tmp_path}/recommended_1.yaml"
    assert Facts.of(content).commands[2] == content["next"]["2"]
    assert next_lines(found, tmp_path) == ["to train with it:", f"  {content['next']['2']}"] and next_lines(replace(found, interrupted=True), tmp_path) == []


def test_the_page_has_a_row_a_trial():
    page = markdown(FOUND)
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 5 and rows[0].count("|") == len(COLUMNS) + 1 and "search" in rows[1]
    assert "interrupted" not in page and "went on" not in page


def test_sentences_say_how_many_seeds_and_what_fits_where_it_was_not_run():
    again = [replace(record("another seed", 128, MET, steps), settings=Settings(2, 128, BEST.settings.peak_lr, seed=seed)) for seed, steps in ((1, 120), (2, 180))]
    found = Found("a.py", FOUND.target, (FOUND.records[0], BEST, *again), 60.0, phases={"memory": {"2": {"micro_batch": 900}}})
    text = "\n".join(sentences(found, 2))
    assert "(the best of 2 settings, by the median over 3 seeds, 1.2 s)" in text
    assert f"{FITS}: not measured (the budget was spent before; 2 x 900 samples)" in text
    assert sentences(found, 1) == ["On 1 rank no trial was run: the budget was spent before."]


def test_a_recommendation_of_an_earlier_search_does_not_stay_beside_another_report(tmp_path):
    write(FOUND, tmp_path)
    (tmp_path / "recommended_mine.yaml").write_text("lr: 1\n")
    assert (tmp_path / "recommended.yaml").exists()
    paths = write(replace(FOUND, records=FOUND.records[1:3]), tmp_path)
    assert {path.name for path in tmp_path.glob("*.yaml")} == {"recommended_mine.yaml"} and len(paths) == 2


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({}, "the budget was spent before"),
        ({"interrupted": True}, "the search was interrupted before"),
        ({"refused": True}, "an error ended the search before"),
        ({"at_trials": frozenset({2})}, "--trials ended the search before"),
        ({"at_trials": frozenset({1})}, "the budget was spent before"),
    ],
)
def test_what_was_not_measured_has_its_true_reason(how, why):
    found = replace(FOUND, records=(FOUND.records[0], BEST), **how)
    text = "\n".join(sentences(found, 2))
    assert f"{LINEAR}: not measured ({why})." in text and f"{FITS}: not measured ({why}; 2 x 256 samples)." in text
    assert sentences(found, 4) == [f"On 4 ranks no trial was run: {'the budget was spent before' if 'at_trials' in how else why}."]


def test_what_fits_may_be_the_linear_rule_s_row():
    found = replace(FOUND, records=(*FOUND.records[:2], BEST), micro_batch=128)
    assert f"{FITS}: the same as the {LINEAR} at batch 256." in sentences(found, 2)


def test_one_of_a_thing_is_no_plural():
    only = replace(FOUND, records=(replace(BEST, result=replace(BEST.result, steps=1, samples=1)),))
    text = "\n".join(sentences(only, 2))
    assert "after 1 step, 1 sample and" in text and "(the only settings that were tried, one trial, no spread known)" in text
    assert "1 trial took" in markdown(only)


def test_what_to_change_depends_on_how_they_ended():
    ended = replace(FOUND, records=(record(DEFAULT, 64, SCRIPT_END, 150),))
    assert "more epochs" in sentences(ended, 2)[0] and "budget" not in sentences(ended, 2)[0]
    assert "lower rate" in sentences(replace(FOUND, records=FOUND.records[1:2]), 2)[0]
    assert "larger --budget" in sentences(replace(FOUND, records=FOUND.records[1:3]), 2)[0]


def test_json_is_json_whatever_the_script_s_config_has(tmp_path):
    odd = replace(BEST, result=replace(BEST.result, config={**BEST.result.config, "config": {"lr": 0.1, "batch": 128, "clip": float("inf")}}))
    write(replace(FOUND, records=(odd,)), tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(), parse_constant=lambda name: 1 / 0)
    assert content["trials"][0]["result"]["config"]["config"]["clip"] is None


def test_others_are_compared_by_the_median_over_seeds_too():
    again = [replace(record("another seed", 128, MET, 120), settings=Settings(2, 128, BEST.settings.peak_lr, seed=seed)) for seed in (1, 2)]
    text = "\n".join(sentences(replace(FOUND, records=(FOUND.records[0], BEST, *again)), 2))
    assert f"{DEFAULT} (batch 64): 1.25 times as long" in text  # 150 steps against 100, 120 and 120


def test_the_page_has_the_same_best_trial_and_the_same_seconds(tmp_path):
    again = [replace(record("another seed", 64, MET, 110), settings=Settings(2, 64, BEST.settings.peak_lr, seed=seed)) for seed in (1, 2)]
    busy = replace(BEST, result=replace(BEST.result, fitted_step_s=0.004))
    found = replace(FOUND, records=(FOUND.records[0], busy, *again, record("search", 32, MET, 50, ranks=1)))
    write(found, tmp_path)
    content = json.loads((tmp_path / "report.json").read_text())
    assert [trial["to_target_s"] for trial in content["trials"]] == [1.5, 0.4, 1.1, 1.1, 0.5]
    assert content["best"] == {"2": {"trial": 0, "seconds": 1.1}, "1": {"trial": 4, "seconds": 0.5}}
    facts = Facts.of(content)
    assert facts.best(2) is facts.trials[0] and facts.seconds(facts.best(2)) == 1.1


def test_a_report_is_there_whole_or_as_it_was(tmp_path, monkeypatch):
    write(FOUND, tmp_path)
    before = (tmp_path / "report.json").read_text()
    monkeypatch.setattr("os.replace", lambda *paths: 1 / 0)  # killed before the last moment
    with pytest.raises(ZeroDivisionError):
        write(replace(FOUND, script="b.py"), tmp_path)
    assert (tmp_path / "report.json").read_text() == before
