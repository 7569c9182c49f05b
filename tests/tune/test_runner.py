"""Orders that a job gets, and what its events mean; several runs in one job, the later ones after a failure."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hvd_trainer.tune.job import JobEnd
from hvd_trainer.tune.runner import Interrupted, Refused, Run, TrialRunner, read_events
from hvd_trainer.tune.target import parse_target
from hvd_trainer.tune.trial import CAP, FAILED, MET, Caps, Settings
from tests.tune.fake_job import FakeJob

TARGET = parse_target("val_loss<=0.4")


def test_torn_lines_are_left_out(tmp_path):
    (tmp_path / "events").write_text('{"event": "check", "step": 1}\n3\n{"event": "che')
    assert read_events(tmp_path / "events") == [{"event": "check", "step": 1}]
    assert read_events(tmp_path / "none") == []


def test_the_runner_hands_over_settings_caps_and_what_to_expect():
    job = FakeJob()
    runner = TrialRunner(job, parse_target("val_loss<=0.4"))
    first = runner.run(Settings(2), Caps())
    assert job.calls[0]["fields"] == {} and job.calls[0]["expect"] == {}
    second = runner.run(Settings(2, 128, 0.2, "sgd", 1000), Caps(train_s=3.0, steps=7), first)
    assert job.calls[1]["fields"] == {"global_batch": 128, "lr": 0.05, "optimizer": "sgd", "warmup_epochs": 0.05}
    assert job.calls[1]["expect"] == {"global_batch": 128, "peak_lr": 0.2, "optimizer": "sgd"}
    assert (job.calls[1]["max_train_s"], job.calls[1]["max_steps"]) == (3.0, 7)
    assert second.start["peak_lr"] == 0.2


def runs(*batches):
    return [Run(Settings(2, batch, 0.1), Caps(train_s=50.0)) for batch in batches]


@pytest.fixture
def known():
    return TrialRunner(FakeJob(), TARGET).run(Settings(2), Caps())


def test_several_runs_in_one_job(known):
    job = FakeJob()
    results = TrialRunner(job, TARGET).run_many([*runs(64, 128), Run(Settings(2, 256, 0.1), Caps(steps=7), watch={"metric": "", "num_losses": 3})], known, 60.0)
    assert job.jobs == 1 and [result.start["global_batch"] for result in results] == [64, 128, 256]
    assert [result.outcome for result in results] == [MET, MET, CAP]
    assert (results[2].steps, len(results[2].end["losses"])) == (7, 3)
    assert sum(result.wall_s for result in results) < 1.0 and all(result.start_s == 0 for result in results[1:])


def test_runs_after_a_failed_one_have_no_result(known):
    job = FakeJob(fail=lambda fields: JobEnd(137, "Killed") if fields["global_batch"] == 128 else None)
    results = TrialRunner(job, TARGET).run_many(runs(64, 128, 256), known, 60.0)
    assert [result and result.outcome for result in results] == [MET, FAILED, None]
    assert "out of memory" in results[1].reason


def test_an_interrupted_job_keeps_what_was_over(known):
    def start(ranks, order_path, timeout_s):
        job(ranks, order_path, timeout_s)
        for number in (1, 2):
            events = Path(json.loads(Path(order_path).read_text())["runs"][number]["events"])
            events.write_text(events.read_text().splitlines()[0] + "\n" if number == 1 else "")
        raise KeyboardInterrupt

    job = FakeJob()
    with pytest.raises(Interrupted) as caught:
        TrialRunner(start, TARGET).run_many(runs(64, 128, 256), known, 60.0)
    assert [result and result.outcome for result in caught.value.results] == [MET, None, None]
    assert isinstance(caught.value, KeyboardInterrupt)


def test_the_start_is_counted_once_and_each_run_for_itself(known, monkeypatch):
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("hvd_trainer.tune.runner.time.monotonic", lambda: next(clock))
    results = TrialRunner(FakeJob(run_s=2.0), TARGET).run_many(runs(64, 128, 256), known, 60.0)
    assert [result.wall_s for result in results] == [6.0, 2.0, 2.0]
    assert [result.start_s for result in results] == [4.0, 0.0, 0.0]


class Rounds(FakeJob):
    """A script that rounds its batch down: the run that finds it out ends the job, as the watch of a trial does it."""

    def _run(self, order, ranks):
        if order["fields"].get("global_batch", 0) % 64 == 0:
            return super()._run(order, ranks)
        event = {"event": "error", "kind": "TrialRefused", "message": "the trial set a batch", "ours": True}
        Path(order["events"]).write_text(json.dumps(event) + "\n")
        return JobEnd(1, "")


def test_a_refused_run_does_not_lose_those_before_it(known):
    with pytest.raises(Refused, match="the trial set a batch") as caught:
        TrialRunner(Rounds(), TARGET).run_many(runs(64, 128, 100, 256), known, 60.0)
    assert [result and result.outcome for result in caught.value.results] == [MET, MET, None, None]


def test_a_number_as_lr_scaling_that_changes_with_the_batch_is_called_by_its_name(known):
    class Computed(Rounds):
        def _run(self, order, ranks):
            ended = super()._run(order, ranks)
            events = read_events(Path(order["events"]))
            scale = order["fields"].get("global_batch", 64) / 32
            started = {**known.start, "event": "start", "rule": "fixed", "lr_scale": scale, "global_batch": order["fields"].get("global_batch", 64)}
            Path(order["events"]).write_text("\n".join(json.dumps(event) for event in [started, *events]))
            return ended

    fixed = replace(known, start={**known.start, "rule": "fixed", "lr_scale": 2.0})
    with pytest.raises(Refused, match="lr_scaling is 2 with batch 64 on 2 ranks and 3.125 with batch 100") as caught:
        TrialRunner(Computed(), TARGET).run_many(runs(100), fixed, 60.0)
    assert "lr_scaling" in caught.value.fix and "BatchPlan" not in str(caught.value)
