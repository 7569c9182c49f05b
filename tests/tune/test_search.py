"""The search against a job that trains nothing: rows, optimum, caps, failures, interruption, budget, storage."""

import math
from pathlib import Path

import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.job import JobEnd
from hvd_trainer.tune.ledger import Ledger
from hvd_trainer.tune.runner import TrialRunner
from hvd_trainer.tune.search import Options, Search, best_of
from hvd_trainer.tune.start_points import DEFAULT, FITS, LINEAR
from hvd_trainer.tune.target import parse_target
from hvd_trainer.tune.trial import DIVERGED, FAILED, MET
from tests.tune.fake_job import FakeJob

IDENTITY = {"script": "a.py", "target": "x"}


def search(tmp_path, job, storage="journal", on_change=lambda running: None, **options):
    options = Options(**{"ranks": (2,), "budget_s": 1000.0, "max_trials": 24, **options})
    ledger = Ledger(str(tmp_path / storage), IDENTITY)
    return Search(TrialRunner(job, parse_target("val_loss<=0.4")), ledger, options, on_change)


def test_finds_a_good_batch_and_rate_and_always_has_the_rows(tmp_path):
    shown = []
    records = search(tmp_path, FakeJob(), on_change=shown.append, micro_batch=4096, max_trials=30).run()
    labels = [record.label for record in records]
    assert labels[0] == DEFAULT and labels.count(LINEAR) == 2 and labels.count(FITS) == 1 and len(records) == 30
    fits = next(record for record in records if record.label == FITS)
    assert fits.settings.global_batch == 8192 and fits.result.outcome == DIVERGED
    # The best of this model, by a grid over batches: rate exact.
    ideal = min(100 * (1 + 256 / b) * 0.001 * (1 + b / 1024) for b in range(16, 2049, 4))
    assert best_of(records, 2).result.to_target_s < 1.3 * ideal
    assert shown[0] == f"{DEFAULT}, 2 ranks" and shown.count("") == 32  # and two jobs of phases


def test_a_sampled_trial_ends_at_one_and_a_half_times_the_best(tmp_path):
    job = FakeJob()
    records = search(tmp_path, job).run()
    best_s = math.inf
    for record, order in zip(records, job.calls):
        if record.label == "search":
            assert order["max_train_s"] == pytest.approx(1.5 * best_s, rel=0.01)  # the fit of step times moves it a little
        best_s = min(best_s, record.result.to_target_s)


def test_goes_on_where_it_was_interrupted(tmp_path):
    job = FakeJob(interrupt_at=8)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, job).run()
    first = search(tmp_path, job).records
    assert len(first) == 7
    again = FakeJob()
    records = search(tmp_path, again).run()
    assert records[:7] == first and len(records) == 24 and len(again.calls) == 17
    assert len({record.settings.key for record in records}) == 24
    assert search(tmp_path, again).run() == records and len(again.calls) == 17


def test_the_budget_counts_what_was_spent_before(tmp_path):
    hunt = search(tmp_path, FakeJob(), max_trials=3)
    hunt.run()
    spent_s = sum(record.result.wall_s for record in hunt.records)
    assert len(search(tmp_path, FakeJob(), budget_s=spent_s, max_trials=None).run()) == 3


def test_failed_trials_do_not_end_the_search(tmp_path):
    job = FakeJob(fail=lambda fields: JobEnd(137, "Killed") if fields.get("global_batch", 0) > 200 else None)
    records = search(tmp_path, job, max_trials=14).run()
    failed = [record for record in records if record.result.outcome == FAILED]
    assert len(records) == 14 and failed and all("out of memory" in record.result.reason for record in failed)
    assert best_of(records, 2).result.outcome == MET


def test_a_script_that_fails_as_it_is_ends_the_search(tmp_path):
    def nothing(ranks, order, timeout_s):
        return JobEnd(1, "NameError: x")

    with pytest.raises(ConfigError, match="NameError: x"):
        search(tmp_path, nothing).run()


def test_each_optimizer_gets_the_same_number_of_trials(tmp_path):
    records = search(tmp_path, FakeJob(), optimizers=("sgd", "adamw"), max_trials=16).run()
    sampled = [record.settings.optimizer for record in records if record.label == "search"]
    assert len(sampled) == 10 and sampled.count("adamw") == sampled.count("sgd")


def test_each_number_of_ranks_is_searched(tmp_path):
    hunt = search(tmp_path, FakeJob(("global_batch", "lr")), ranks=(1, 2), max_trials=13, micro_batch=256)
    labels = {(record.settings.ranks, record.label) for record in hunt.run()}
    assert {(2, DEFAULT), (2, LINEAR), (2, FITS), (1, DEFAULT)} <= labels
    assert [sum(record.settings.ranks == ranks for record in hunt.records) for ranks in (1, 2)] == [6, 7]
    assert {record.settings.warmup_samples for record in hunt.records} == {None}


def test_another_search_in_the_same_storage_is_refused(tmp_path):
    Ledger(str(tmp_path / "journal"), IDENTITY)
    with pytest.raises(ConfigError, match="'x' there, 'y' now"):
        Ledger(str(tmp_path / "journal"), {**IDENTITY, "target": "y"})


@pytest.mark.slow
def test_sqlite_works_too(tmp_path):
    job = FakeJob()
    ledger = Ledger(f"sqlite:///{tmp_path}/tune.db", IDENTITY)
    options = Options((2,), 1000.0, max_trials=3)
    records = Search(TrialRunner(job, parse_target("val_loss<=0.4")), ledger, options).run()
    assert [r.settings for r in Ledger(f"sqlite:///{tmp_path}/tune.db", IDENTITY).records()] == [r.settings for r in records]


def test_a_stream_whose_warm_up_is_in_epochs_keeps_it(tmp_path):
    """Nobody knows the length of its epochs; the rest of it can be searched all the same."""

    class Stream(FakeJob):
        def _run(self, order, ranks):
            ended = super()._run(order, ranks)
            path = Path(order["events"])
            path.write_text(path.read_text().replace('"num_samples": 20000', '"num_samples": null'))
            return ended

    records = search(tmp_path, Stream(), max_trials=8, phases=False).run()
    assert len(records) == 8 and records[-1].label == "search" and {record.settings.warmup_samples for record in records} == {None}
