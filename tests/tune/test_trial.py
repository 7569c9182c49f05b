"""What a job's events and its end mean; and that fields follow from settings."""

import json

import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.job import JobEnd
from hvd_trainer.tune.trial import (
    CAP,
    DIVERGED,
    FAILED,
    MET,
    SCRIPT_END,
    Settings,
    TrialResult,
    fields_for,
    result_of,
)

CONFIG = {"event": "config", "fields": {"global_batch": "batch_size", "lr": "lr", "warmup": "warmup_steps"}, "config": {}}
START = {"event": "start", "rule": "linear", "reference_batch": None, "lr_scale": 2.0, "global_batch": 64, "num_samples": 1000}
CHECK = {"event": "check", "step": 7, "samples": 70, "train_s": 0.5, "val_loss": 1.0}


def end(outcome, **values):
    return {"event": "end", "outcome": outcome, "step": 10, "samples": 100, "train_s": 2.0, "step_s": 0.1, "value": 0.3, **values}


@pytest.mark.parametrize(
    ("event", "code", "outcome"),
    [(end("met"), 0, MET), (end("cap"), 0, CAP), (end("script_end"), 0, SCRIPT_END), (end("diverged", message="loss nan"), 1, DIVERGED), (end("met"), None, MET)],
)
def test_an_end_that_was_written_counts_whatever_the_exit_code(event, code, outcome):
    result = result_of([CONFIG, START, CHECK, event], JobEnd(code, "text"), 9.0, {"lr": 1})
    assert (result.outcome, result.steps, result.samples, result.train_s, result.wall_s) == (outcome, 10, 100, 2.0, 9.0)
    assert result.to_target_s == (1.0 if outcome == MET else float("inf"))
    assert TrialResult.from_dict(json.loads(json.dumps(result.as_dict()))) == result


@pytest.mark.parametrize(
    ("code", "text", "errors", "words"),
    [
        (137, "Killed", [], "out of memory: a rank was killed"),
        (-9, "", [], "out of memory: a rank was killed"),
        (137, "mpirun noticed that a process exited on signal 9 (Killed)", [], "out of memory"),
        (1, "", [{"event": "error", "kind": "OutOfMemoryError", "message": "CUDA out of memory. Tried"}], "out of memory: OutOfMemoryError"),
        (1, "", [{"event": "error", "kind": "OtherRankEnded", "message": "x"}, {"event": "error", "kind": "ValueError", "message": "bad\nmore"}], "ValueError: bad"),
        (3, "a\nTraceback", [], "exit code 3"),
    ],
)
def test_failures_say_why_and_keep_the_last_lines(code, text, errors, words):
    result = result_of([CONFIG, START, CHECK, *errors], JobEnd(code, text), 1.0, {})
    assert result.outcome == FAILED and result.reason.startswith(words) and result.last_lines == text and result.steps == 7
    assert ("out of memory" in result.reason) == ("out of memory" in words)


def test_a_script_that_stops_itself_is_no_script_without_a_trainer():
    """As ht.EarlyStop does it: the run ends before its length, in peace, and without an end that the watch wrote."""
    result = result_of([CONFIG, START, CHECK], JobEnd(0, ""), 5.0, {})
    assert (result.outcome, result.steps, result.train_s) == (SCRIPT_END, 7, 0.5) and "stopped itself" in result.reason
    with pytest.raises(ConfigError, match="never called|trained without"):
        result_of([CONFIG], JobEnd(0, ""), 5.0, {})


def test_a_job_that_was_killed_at_the_limit_is_a_cap():
    result = result_of([CONFIG, START, CHECK], JobEnd(None, ""), 5.0, {})
    assert (result.outcome, result.reason, result.train_s) == (CAP, "killed after 5 s", 0.5)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], r"never called ht.run\(main, config\)"),
        ([CONFIG], "without ht.Trainer"),
        ([{"event": "error", "kind": "TrialRefused", "message": "add a field"}], "add a field"),
    ],
)
def test_a_script_that_cannot_be_a_trial_is_refused(events, words):
    with pytest.raises(ConfigError, match=words):
        result_of(events, JobEnd(0, ""), 1.0, {})


def test_without_a_reference_batch_the_factor_is_the_ranks():
    settings = Settings(4, 256, 0.8, None, 512)
    assert fields_for(settings, CONFIG, START) == {"batch_size": 256, "lr": 0.2, "warmup_steps": 2}
    assert fields_for(settings, CONFIG, {**START, "rule": "fixed"})["lr"] == 0.4
    assert fields_for(settings, CONFIG, {**START, "rule": "sqrt", "reference_batch": 64.0})["lr"] == 0.4


def test_what_cannot_be_set_is_refused():
    with pytest.raises(ConfigError, match="no field for optimizer"):
        fields_for(Settings(1, 64, 0.1, "adamw"), CONFIG, START)
    with pytest.raises(ConfigError, match="lr_scaling is 'adascale'"):
        fields_for(Settings(1, 64, 0.1), CONFIG, {**START, "rule": "adascale"})


def test_a_trial_that_was_capped_after_one_step_says_so():
    once = end("cap", step=1, train_s=12.0)
    assert result_of([CONFIG, START, once], JobEnd(0, ""), 9.0, {}).reason == "too few steps to judge: 1 in 12 s; a larger --budget"
    assert result_of([CONFIG, START, {**CHECK, "step": 1}], JobEnd(None, ""), 5.0, {}).reason.startswith("too few steps to judge: 1 in 0.5 s")
    assert result_of([CONFIG, START], JobEnd(None, ""), 5.0, {}).reason.endswith("killed after 5 s")
    assert result_of([CONFIG, START, end("cap", step=2)], JobEnd(0, ""), 9.0, {}).reason == "the cap of this trial"
