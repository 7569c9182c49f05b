"""What a report.json says, whole and in pieces."""

import math

from hvd_trainer.report.curves import curves
from hvd_trainer.report.facts import DEFAULT, FITS, Facts
from tests.report.made_up import report, trial


def test_a_whole_report():
    facts = Facts.of(report())
    assert facts.ranks == [2, 1] and len(facts.trials) == 57 and facts.start["global_batch"] == 32
    best = facts.best(2)
    assert best.seconds == min(t.seconds for t in facts.on(2)) and facts.best(4) is None
    assert facts.row(DEFAULT, 2).global_batch == 32 and math.isinf(facts.row(FITS, 2).seconds)
    assert facts.micro_batch(2) == 4096 and facts.micro_batch(8) is None


def test_pieces_of_a_report_and_nothing():
    for content in ({}, {"trials": []}, {"trials": [{}]}, {"trials": [{"settings": None, "result": {"outcome": "failed"}}], "phases": None}):
        facts = Facts.of(content)
        assert facts.best(1) is None and facts.part("noise") == {} and facts.entries("backends") == [] and facts.notes == []
    odd = Facts.of({"phases": {"noise": "none", "memory": {"2": None, "4": 7}, "backends": "x", "prediction": {"rows": None}}})
    assert odd.part("noise") == {} and odd.micro_batch(2) is None and odd.micro_batch(4) == 7 and odd.entries("prediction", "rows") == []


def test_the_best_is_that_of_several_seeds():
    lucky, steady = trial("search", 2, 64, 0.2, 0, steps=100), trial("search", 2, 128, 0.3, 1, steps=105)
    again = []
    for seed, steps in ((1, 106), (2, 400)):
        other = trial("another seed", 2, 128, 0.3, 1 + seed, steps=steps)
        other["settings"]["seed"] = seed
        again.append(other)
    facts = Facts.of({"trials": [lucky, steady, *again]})
    best = facts.best(2)
    assert best is facts.trials[1] and facts.seconds(best) == facts.trials[2].seconds  # the median of 105, 106 and 400
    assert facts.steps(best) == 106 and curves(facts).points[1].steps == 106
    assert facts.seconds(facts.trials[0]) == facts.trials[0].seconds


def test_a_trial_that_did_not_come_there_has_no_time():
    facts = Facts.of({"trials": [trial("search", 2, 64, 9.0, 0), trial("search", 2, 64, 0.2, 1)]})
    assert [t.is_met for t in facts.trials] == [False, True] and facts.trials[0].outcome == "diverged"


def test_a_trial_on_a_busy_machine_counts_as_the_search_counts_it():
    """Else the page recommended another trial than recommended.yaml."""
    disturbed, other = trial("search", 2, 64, 0.2, 0, steps=100), trial("search", 2, 128, 0.3, 1, steps=105)
    usual_s = disturbed["result"]["step_s"]
    disturbed["result"].update(step_s=5 * usual_s, fitted_step_s=usual_s)
    facts = Facts.of({"trials": [disturbed, other]})
    assert facts.best(2).global_batch == 64 and facts.best(2).seconds == 100 * usual_s and facts.trials[0].step_s == 5 * usual_s
    other["result"]["fitted_step_s"] = 2 * other["result"]["step_s"]
    assert Facts.of({"trials": [other]}).best(2).seconds == 105 * other["result"]["step_s"]


def test_values_that_no_search_writes_are_left_out():
    for values in ({"trials": [None, 3, {"settings": 1, "result": "x"}]}, {"trials": 1, "recommended": "x", "phases": 7}, {"recommended": {"a": {}, "2": None}}):
        assert Facts.of(values).best(1) is None and Facts.of(values).recommended == {} and Facts.of(values).phases == {}
    for name, value in (("global_batch", None), ("global_batch", -4), ("peak_lr", math.nan), ("ranks", [2])):
        odd = trial("search", 2, 64, 0.2, 0)
        odd["result"]["start"][name] = value
        odd["settings"]["ranks"] = value if name == "ranks" else 2
        facts = Facts.of({"trials": [odd, trial("search", 2, 128, 0.3, 1)]})
        assert facts.best(2).global_batch == 128 and curves(facts).optimizer == "sgd"


def test_jobs_side_by_side_took_the_time_once():
    shared = trial("search", 2, 64, 0.2, 0)
    shared["result"].update(wall_s=8.0, shared_by=2)
    assert [t.wall_s for t in Facts.of({"trials": [shared, shared]}).trials] == [4.0, 4.0]


def test_what_the_search_counted_and_chose_is_read_and_not_worked_out_again():
    slow, fast = trial("search", 2, 64, 0.2, 0, steps=300), trial("search", 2, 128, 0.3, 1, steps=105)
    slow["to_target_s"], fast["to_target_s"] = 0.125, 0.25
    facts = Facts.of({"trials": [slow, fast], "best": {"2": {"trial": 1, "seconds": 0.25}}})
    assert [t.seconds for t in facts.trials] == [0.125, 0.25] and facts.best(2) is facts.trials[1]
    for odd in ({"2": {"trial": 7}}, {"2": {"trial": "1"}}, {"2": 1}, {"x": {"trial": 1}}, [1], {"2": {"trial": -1}}):
        assert Facts.of({"trials": [slow, fast], "best": odd}).best(2).global_batch == 64
