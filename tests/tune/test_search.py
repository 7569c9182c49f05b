"""The search against a job that trains nothing: rows, optimum, caps, failures, interruption, budget, storage."""

import json
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
    kept = Ledger(str(tmp_path / "journal"), IDENTITY)
    kept.keep_phase("noise", {})
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


class Clocked(FakeJob):
    """Advances a clock by what a start and each run take: `seconds` for the script as it is on one rank."""

    def __init__(self, seconds, *arguments, **options):
        super().__init__(*arguments, **options)
        self.now_s, self._seconds = 0.0, seconds

    def __call__(self, ranks, order_path, timeout_s):
        self.now_s += 4.5
        return super().__call__(ranks, order_path, timeout_s)

    def _end(self, order, *arguments):
        end = super()._end(order, *arguments)
        if order["metric"]:  # seconds of the model are those of a step of 1 ms: a script that trains for longer
            slower = self._seconds / 0.5625
            most_s = order["max_train_s"] or math.inf
            end["train_s"] = min(slower * end["train_s"], most_s)
            end["step_s"] = end["train_s"] / end["step"]
        self._run_s = end.get("train_s", 1.0)
        self.now_s += self._run_s
        return {**end, "wall_s": self._run_s}


def test_a_small_budget_is_divided_between_the_numbers_of_ranks(tmp_path, monkeypatch):
    job = Clocked(2.0, ("global_batch", "lr", "seed"), noise=256.0)
    monkeypatch.setattr("hvd_trainer.tune.runner.time.monotonic", lambda: job.now_s)
    hunt = search(tmp_path, job, ranks=(1, 2), budget_s=100.0, max_trials=None)
    records = hunt.run()
    labels = [(record.settings.ranks, record.label) for record in records]
    assert labels[:2] == [(2, DEFAULT), (1, DEFAULT)] and {(2, "predicted"), (1, "predicted")} == set(labels[2:4])
    spent = {ranks: sum(record.result.wall_s for record in records if record.settings.ranks == ranks) for ranks in (1, 2)}
    assert 0.6 < spent[1] / spent[2] < 1.7 and job.now_s < 110.0
    assert all(best_of(records, ranks).result.to_target_s < 0.9 * next(r for r in records if r.settings.ranks == ranks).result.to_target_s for ranks in (1, 2))


def test_a_script_that_rounds_its_batch_does_not_lose_the_runs_before_it_in_the_job(tmp_path, monkeypatch):
    monkeypatch.setattr(Search, "_at_once", lambda self, turn: 4)

    class Rounds(FakeJob):
        def _run(self, order, ranks):
            super()._run(order, ranks)
            if order["metric"] and len(self.calls) == 4:
                Path(order["events"]).write_text('{"event": "error", "kind": "TrialRefused", "message": "batch of the run is 1000"}\n')
                return JobEnd(1, "")

    hunt = search(tmp_path, Rounds(), phases=False)
    with pytest.raises(ConfigError, match="batch of the run is 1000"):
        hunt.run()
    assert [record.label for record in hunt.records] == [DEFAULT, LINEAR, "sqrt rule"]


def test_lr_scaling_may_be_the_number_of_ranks(tmp_path):
    """A number that is another one on each number of ranks: what a rate becomes is known from the default there."""

    class ByRanks(FakeJob):
        def _run(self, order, ranks):
            ended = super()._run(order, ranks)
            path = Path(order["events"])
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            scale, rate = float(ranks), order["fields"].get("lr", 0.1)
            wanted = order["expect"].get("peak_lr", rate * scale)
            lines[1].update(rule="fixed", lr_scale=scale, peak_lr=rate * scale)
            if not math.isclose(wanted, rate * scale, rel_tol=1e-6):
                lines[2] = {"event": "error", "kind": "TrialRefused", "message": f"the peak rate is {rate * scale}, not {wanted}"}
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            return ended

    records = search(tmp_path, ByRanks(), ranks=(1, 2), max_trials=8).run()
    assert len(records) == 8 and {record.settings.ranks for record in records} == {1, 2}
    alone = search(tmp_path, ByRanks(), "other", ranks=(2,), max_trials=3)
    assert len(alone.run()) == 3 and any("lr_scaling is 2 with batch 64 on 2 ranks and 1 with" in note for note in alone.phases["notes"])
