"""What a search keeps, and how often it is read."""

import json

import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune import ledger
from hvd_trainer.tune.ledger import ROWS, Ledger
from hvd_trainer.tune.trial import CAP, MET, Settings, TrialResult


def test_a_look_parses_only_what_is_new(tmp_path, monkeypatch):
    kept = Ledger(str(tmp_path / "journal"), {"script": "a.py"})
    parsed = []
    monkeypatch.setattr(ledger, "record_of", lambda trial, parse=ledger.record_of: parsed.append(trial.number) or parse(trial))
    for number in range(4):
        kept.finish(ROWS, kept.study(ROWS).ask(), "row", Settings(2, 32 * 2**number), TrialResult(MET, steps=9, step_s=0.1))
        assert len(kept.records()) == len(kept.records()) == number + 1
    assert parsed == [0, 1, 2, 3] and kept.find(Settings(2, 64)).label == "row"
    assert [record.settings for record in Ledger(str(tmp_path / "journal"), {"script": "a.py"}).records()] == [record.settings for record in kept.records()]


def test_where_nothing_was_finished_another_target_may_begin(tmp_path):
    """A first try with a metric that the script does not have must not block the second."""
    path = str(tmp_path / "journal")
    Ledger(path, {"target": "val_loss<=1"})
    kept = Ledger(path, {"target": "accuracy>=0.9"})
    kept.finish(ROWS, kept.study(ROWS).ask(), "row", Settings(2), TrialResult(CAP, train_s=1.0))
    Ledger(path, {"target": "accuracy>=0.9"})
    with pytest.raises(ConfigError, match="accuracy>=0.9' there"):
        Ledger(path, {"target": "loss<=1"})


def test_a_trial_under_way_is_no_record_until_it_is_finished(tmp_path):
    kept = Ledger(str(tmp_path / "journal"), {})
    trial = kept.study(ROWS).ask()
    assert kept.records() == []
    kept.finish(ROWS, trial, "row", Settings(2), TrialResult(CAP, train_s=1.0))
    assert [record.result.outcome for record in kept.records()] == [CAP]
    kept.keep_phase("noise", {"a": [1]})
    assert json.dumps(kept.phases()) == '{"noise": {"a": [1]}}'


def test_a_journal_that_cannot_be_opened_is_a_mistake_of_the_user(tmp_path):
    with pytest.raises(ConfigError, match="mkdir -p .*nowhere"), ledger.alone(str(tmp_path / "nowhere" / "journal")):
        pass
