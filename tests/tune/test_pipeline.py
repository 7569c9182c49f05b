"""The phases around the search, against a job that trains nothing: what is measured, predicted, repeated, and not done twice."""

import json

import pytest

from hvd_trainer.tune.finalists import SEED
from hvd_trainer.tune.job import JobEnd
from hvd_trainer.tune.ledger import Ledger
from hvd_trainer.tune.runner import TrialRunner
from hvd_trainer.tune.search import Options, Search, best_of
from hvd_trainer.tune.start_points import DEFAULT, FITS, PREDICTED
from hvd_trainer.tune.target import parse_target
from hvd_trainer.tune.trial import FAILED
from tests.tune.fake_job import NOISE, FakeJob

ROLES = ("global_batch", "lr", "optimizer", "warmup_epochs", "seed")


def search(tmp_path, job, storage="journal", **options):
    options = Options(**{"ranks": (1, 2), "budget_s": 1000.0, "max_trials": 14, **options})
    return Search(TrialRunner(job, parse_target("val_loss<=0.4")), Ledger(str(tmp_path / storage), {"script": "a.py"}), options)


def test_the_phases_say_what_they_found(tmp_path):
    job = FakeJob(ROLES, noise=NOISE)
    hunt = search(tmp_path, job)
    records = hunt.run()
    phases = json.loads(json.dumps(hunt.phases, allow_nan=False))
    assert phases["check"]["agrees"] and set(phases["check"]["losses"]) == {"1", "2"}
    assert phases["memory"]["2"]["micro_batch"] == 10_000 and phases["memory"]["2"]["ended_by"] == "the end of the data"
    assert {(point["ranks"], point["global_batch"]) for point in phases["step_time"]["points"]} >= {(1, 16), (2, 16), (1, 2048), (2, 2048)}
    for ranks in ("1", "2"):
        assert phases["step_time"]["fit"][ranks]["fixed_s"] == pytest.approx(1e-3, rel=0.05)
    assert phases["lr_range"]["global_batch"] == 2048 and phases["lr_range"]["stopped"] == "diverged"
    assert (phases["noise"]["noise_scale"], phases["noise"]["low"], phases["noise"]["high"]) == (NOISE, NOISE / 2, 2 * NOISE)
    assert [row["ranks"] for row in phases["ranks"]] == [1, 2] and phases["ranks"][1]["speed_up"] > 1
    first = next(record for record in records if record.label == PREDICTED)
    assert first.settings.global_batch == phases["prediction"]["best"]["2"]["global_batch"]
    # The optimum of the model, sqrt(noise scale x ranks x a / c) = 512 on 2 ranks, in steps of half an octave.
    assert 362 <= first.settings.global_batch <= 725
    assert {record.label for record in records} >= {DEFAULT, PREDICTED, FITS, SEED}


@pytest.mark.parametrize("harmless", [True, False])
def test_what_fits_shares_a_job_only_where_it_cannot_be_killed(tmp_path, monkeypatch, harmless):
    """And then it comes first: a small budget must not leave out the row that people ask for."""
    monkeypatch.setattr("hvd_trainer.tune.search.is_harmless", lambda found: harmless)
    monkeypatch.setattr(Search, "_at_once", lambda self, turn: 4)
    jobs = []

    class Watched(Search):
        def _run(self, items, room_s):
            jobs.append([item.label for item in items])
            super()._run(items, room_s)

    hunt = Watched(TrialRunner(FakeJob(ROLES, noise=NOISE), parse_target("val_loss<=0.4")), Ledger(str(tmp_path / "j"), {"script": "a.py"}),
                   Options((2,), 1000.0, max_trials=8))  # fmt: skip
    hunt.run()
    mine = next(labels for labels in jobs if FITS in labels)
    assert (mine[0] == FITS and len(mine) == 4) if harmless else mine == [FITS]


def test_the_search_is_laid_around_the_prediction(tmp_path):
    records = search(tmp_path, FakeJob(ROLES, noise=NOISE), ranks=(2,)).run()
    predicted = next(record.settings for record in records if record.label == PREDICTED)
    sampled = [record.settings for record in records if record.label == "search"]
    assert sampled and all(predicted.global_batch / 4 <= each.global_batch <= 4 * predicted.global_batch for each in sampled)


def test_finalists_are_run_with_other_seeds_and_chosen_by_the_median(tmp_path):
    hunt = search(tmp_path, FakeJob(ROLES, noise=NOISE), ranks=(2,))
    records = hunt.run()
    rows = hunt.phases["finalists"]
    assert len(rows) == 3 and all(row["seeds"] == [None, 1, 2] and len(row["seconds"]) == 3 for row in rows)
    assert [row["median_s"] for row in rows] == sorted(row["median_s"] for row in rows)
    assert best_of(records, 2).result.start["global_batch"] == rows[0]["global_batch"]
    assert sum(record.label != SEED for record in records) == 14


def test_without_a_field_for_the_seed_nothing_is_repeated_and_it_is_said(tmp_path):
    hunt = search(tmp_path, FakeJob(noise=NOISE), ranks=(2,), max_trials=8)
    assert {record.settings.seed for record in hunt.run()} == {None}
    assert any("no field `seed`" in note for note in hunt.phases["notes"])


def test_without_a_noise_scale_there_is_no_prediction_and_it_is_said(tmp_path):
    hunt = search(tmp_path, FakeJob(ROLES), ranks=(2,), max_trials=8)
    assert PREDICTED not in {record.label for record in hunt.run()}
    assert any("undetermined" in note for note in hunt.phases["notes"]) and hunt.phases["prediction"]["rows"] == []
    given = search(tmp_path, FakeJob(ROLES), "other", ranks=(2,), max_trials=8, noise_scale=100.0)
    assert PREDICTED in {record.label for record in given.run()} and given.phases["noise"]["noise_scale"] == 100.0


def test_a_difference_between_ranks_is_said(tmp_path):
    hunt = search(tmp_path, FakeJob(ROLES, losses=lambda ranks: 2.0 + 0.01 * ranks), ranks=(2,), max_trials=3)
    hunt.run()
    check = hunt.phases["check"]
    assert not check["agrees"] and check["difference"] == pytest.approx(0.01 / 2.01) and check["causes"]
    assert any("do not compute" in note for note in hunt.phases["notes"])


@pytest.mark.parametrize("interrupt_at", [3, 5, 16])
def test_after_an_interruption_no_phase_and_no_trial_is_repeated(tmp_path, interrupt_at):
    stopped = FakeJob(ROLES, noise=NOISE, interrupt_at=interrupt_at)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, stopped).run()
    job = FakeJob(ROLES, noise=NOISE)
    again = search(tmp_path, job)
    records = again.run()
    assert stopped.phase_calls and not job.phase_calls
    assert len(stopped.calls) - 1 + len(job.calls) == len(records) and again.phases["prediction"]["rows"]
    more = FakeJob(ROLES, noise=NOISE)
    assert search(tmp_path, more).run() == records and more.jobs == 0


def test_a_batch_that_is_out_of_memory_ends_its_job_and_the_points_before_it_count(tmp_path):
    fail = lambda fields: JobEnd(137, "Killed") if fields.get("global_batch", 0) > 1000 else None  # noqa: E731
    hunt = search(tmp_path, FakeJob(ROLES, noise=NOISE, fail=fail), ranks=(2,), max_trials=3)
    hunt.run()
    phases = hunt.phases
    assert max(point["global_batch"] for point in phases["step_time"]["points"]) < 1000 and phases["step_time"]["fit"]["2"]
    assert "2 ranks, batch 2048: out of memory" in phases["notes"][0] and phases["memory"]["2"]["ended_by"] == "memory"
    assert phases["memory"]["2"]["micro_batch"] <= 500 and "range test failed" in phases["lr_range"]["note"]


def test_a_small_budget_leaves_the_phases_out(tmp_path):
    job = FakeJob(ROLES, noise=NOISE)
    hunt = search(tmp_path, job, budget_s=5.0, max_trials=3)
    hunt.run()
    assert not job.phase_calls and any("left out" in note for note in hunt.phases["notes"])


def test_backends_are_compared_once_and_those_that_do_not_start_say_why(tmp_path):
    options = {"ranks": (2,), "max_trials": 4, "backends": ("mpi", "nccl")}
    hunt = search(tmp_path, FakeJob(ROLES, noise=NOISE, backends=("", "mpi")), **options)
    hunt.run()
    rows = {row["backend"]: row for row in hunt.phases["backends"]}
    assert rows["mpi"]["step_s"] > 0 and rows["nccl"]["step_s"] is None and "exit code 1" in rows["nccl"]["reason"]
    again = FakeJob(ROLES)
    search(tmp_path, again, **options).run()
    assert again.jobs == 0


def test_short_trials_share_a_job(tmp_path, monkeypatch):
    """A start of 4 s and trials of less than one: up to four in a job, and one with a large batch fails alone."""
    clock = iter(range(0, 10**6, 5))
    monkeypatch.setattr("hvd_trainer.tune.runner.time.monotonic", lambda: float(next(clock)))
    fail = lambda fields: JobEnd(137, "Killed") if fields.get("global_batch", 0) > 1000 else None  # noqa: E731
    job = FakeJob(ROLES, run_s=0.2, noise=NOISE, fail=fail)
    records = search(tmp_path, job, ranks=(2,), max_trials=14).run()
    trials = [record for record in records if record.label != SEED]
    assert len(trials) == 14 and len({record.settings.key for record in records}) == len(records)
    assert any(record.result.outcome == FAILED for record in records) and job.jobs < len(records) - 3


def test_ranks_without_room_for_their_step_times_are_predicted_from_the_others(tmp_path, monkeypatch):
    """A small budget has room for one job of step times: the other number of ranks must not do without a predicted trial."""
    monkeypatch.setattr("hvd_trainer.tune.measure.Measurer.room_s", lambda self, start_s: 0.0 if self.ledger.phase("ranks 2") else 5.0)
    hunt = search(tmp_path, FakeJob(ROLES, noise=NOISE), max_trials=4)
    labels = [(record.settings.ranks, record.label) for record in hunt.run() if record.label != SEED]
    assert labels == [(2, DEFAULT), (1, DEFAULT), (2, PREDICTED), (1, PREDICTED)]
    assert hunt.phases["prediction"]["best"]["1"]["labels"] == ["extrapolated"] and any("1 rank: left out" in note for note in hunt.phases["notes"])
