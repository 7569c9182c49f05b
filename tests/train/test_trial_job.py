"""A job of `tune` with several runs: each as if it had a process of its own; and runs that only measure."""

import json
from dataclasses import asdict, dataclass

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import NonFiniteError
from hvd_trainer.train import trial
from hvd_trainer.train.trial import TrialOrder
from tests.train import small
from tests.train.test_trial import mean_square


@dataclass
class Config:
    global_batch: int = 4
    lr: float = 0.1
    seed: int = 0


def main(comm, config):
    """The initial model is what the random states of the process give."""
    model = torch.nn.Linear(3, 1).double()
    trainer = ht.Trainer(
        comm, model, torch.optim.SGD(model.parameters(), lr=config.lr), small.loss_fn, callbacks=[ht.Evaluate(small.make_data(), mean_square)]
    )
    trainer.fit(ht.Loader(small.make_data(), ht.BatchPlan(config.global_batch, comm.size, reference_batch=2), comm, seed=config.seed), epochs=50)


@pytest.fixture
def start(tmp_path, monkeypatch):
    def run(*orders, main=main, backend=""):
        paths = [tmp_path / f"events{number}.jsonl" for number in range(len(orders))]
        for path in paths:
            path.unlink(missing_ok=True)
        run.events = lambda: [[json.loads(line) for line in path.read_text().splitlines()] if path.exists() else [] for path in paths]
        runs = [asdict(TrialOrder(str(path), **{"metric": "val_loss", "sign": "<=", "bound": 0.05, **order})) for path, order in zip(paths, orders)]
        (tmp_path / "order.json").write_text(json.dumps({"runs": runs, "backend": backend}))
        monkeypatch.setenv("HVD_TRAINER_TRIAL", str(tmp_path / "order.json"))
        torch.manual_seed(7)
        ht.run(main, Config(), argv=[], **({} if backend else {"engine": "single"}))
        return run.events()

    yield run
    assert trial.current() is None


TIMING = {"metric": "", "max_steps": 6, "num_losses": 4, "warm_steps": 2}


def test_each_run_is_as_if_it_had_a_job_of_its_own(start):
    runs = [{**TIMING, "fields": {"global_batch": batch, "seed": batch}} for batch in (4, 7)]
    together = start(*runs)
    alone = [start(each)[0] for each in runs]
    assert [events[-1]["losses"] for events in together] == [events[-1]["losses"] for events in alone]
    assert together[0][-1]["losses"] != together[1][-1]["losses"]
    assert [events[0]["config"]["global_batch"] for events in together] == [4, 7]
    assert together[0][0]["fields"] == {"global_batch": "global_batch", "lr": "lr", "seed": "seed"}


def test_a_run_without_a_target_takes_its_steps_and_evaluates_nothing(start):
    events = start(TIMING)[0]
    end = events[-1]
    assert (end["outcome"], end["step"], len(end["losses"])) == ("cap", 6, 4) and "value" not in end
    assert end["step_s"] > 0 and end["peak_bytes"] > 2**20 and end["wall_s"] >= end["train_s"]
    assert all("val_loss" not in event for event in events if event["event"] == "check")


def test_a_run_that_diverged_does_not_end_those_after_it(start):
    def breaks(comm, config):
        if config.lr > 1:
            raise NonFiniteError("the loss is nan")
        main(comm, config)

    events = start({"fields": {"lr": 2.0}}, TIMING, main=breaks)
    assert events[0][-1]["outcome"] == "diverged" and events[1][-1]["outcome"] == "cap"


def test_an_error_ends_the_job_and_is_written_to_its_own_run(start):
    def breaks(comm, config):
        if config.lr > 1:
            raise ValueError("no")
        main(comm, config)

    with pytest.raises(ValueError):
        start(TIMING, {"fields": {"lr": 2.0}}, TIMING, main=breaks)
    events = start.events()
    assert events[0][-1]["outcome"] == "cap" and events[1][-1]["kind"] == "ValueError" and events[2] == []


def test_a_sweep_is_a_range_test_in_place_of_the_training(start):
    events, after = start({"metric": "", "sweep": {"lowest": 1e-3, "highest": 1e3, "num_steps": 20}}, TIMING)
    sweep = events[-1]["sweep"]
    assert sweep["rates"][0] == pytest.approx(1e-3) and len(sweep["losses"]) == len(sweep["rates"]) and sweep["stopped"]
    assert after[-1]["losses"] == start(TIMING)[0][-1]["losses"]


def test_the_evaluation_at_the_end_of_an_epoch_is_no_step(start):
    """Four steps an epoch, and an evaluation of 50 ms after each."""
    import time

    class Slow(ht.Callback):
        def epoch_end(self, trainer, row):
            time.sleep(0.05)

    def slow(comm, config):
        model = small.make_model()
        trainer = ht.Trainer(comm, model, torch.optim.SGD(model.parameters(), lr=0.01), small.loss_fn, callbacks=[Slow()])
        trainer.fit(ht.Loader(small.make_data(), ht.BatchPlan(config.global_batch, 1, reference_batch=2), comm), epochs=50)

    end = start({**TIMING, "max_steps": 40}, main=slow)[0][-1]
    assert end["step"] == 40 and end["wall_s"] > end["train_s"] + 9 * 0.05


def test_a_backend_that_cannot_start_is_an_error_event(start):
    with pytest.raises(Exception, match="nccl"):
        start(TIMING, backend="nccl")
    assert start.events()[0][-1]["event"] == "error" and "nccl" in start.events()[0][-1]["message"]


CACHED = {}


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_is_kept_from_run_to_run_is_refused(start, whole):
    """Whole, or a part of it: the body that a module has loaded once, under a new head."""
    CACHED.clear()

    def keeps(comm, config):
        body = CACHED.setdefault("body", torch.nn.Linear(3, 3).double())
        head = CACHED.setdefault("head", torch.nn.Linear(3, 1).double()) if whole else torch.nn.Linear(3, 1).double()
        model = torch.nn.Sequential(body, head)
        trainer = ht.Trainer(comm, model, torch.optim.SGD(model.parameters(), lr=0.01), small.loss_fn)
        trainer.fit(ht.Loader(small.make_data(), ht.BatchPlan(config.global_batch, comm.size, reference_batch=2), comm), epochs=50)

    with pytest.raises(trial.TrialRefused, match=f"{4 if whole else 2} of 4 parameters, such as 0.bias") as caught:
        start(TIMING, TIMING, main=keeps)
    assert "inside main" in caught.value.fix
    events = start.events()
    assert events[0][-1]["outcome"] == "cap" and events[1][-1]["kind"] == "TrialRefused"


def test_a_model_kept_by_a_run_that_trained_nothing_or_frozen_is_not_refused(start):
    """A range test puts the model back, and a body that is frozen is the same in all runs."""
    CACHED.clear()

    def keeps(comm, config):
        body = CACHED.setdefault("body", torch.nn.Linear(3, 3).double())
        model = torch.nn.Sequential(body, torch.nn.Linear(3, 1).double())
        for parameter in body.parameters():
            parameter.requires_grad_(False)
        trainer = ht.Trainer(comm, model, torch.optim.SGD(model[1].parameters(), lr=0.01), small.loss_fn)
        trainer.fit(ht.Loader(small.make_data(), ht.BatchPlan(config.global_batch, comm.size, reference_batch=2), comm), epochs=50)

    events = start({"metric": "", "sweep": {"lowest": 1e-3, "highest": 1.0, "num_steps": 5}}, TIMING, TIMING, main=keeps)
    assert [each[-1]["outcome"] for each in events] == ["cap", "cap", "cap"]
    assert events[1][-1]["losses"] == events[2][-1]["losses"]
