"""A script under HVD_TRAINER_TRIAL: overridden, watched, ended at target or cap; refused where that cannot be."""

import json
from dataclasses import asdict, dataclass

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import NonFiniteError
from hvd_trainer.train import trial
from hvd_trainer.train.trial import TrialOrder, TrialRefused
from tests.train import small


@dataclass
class Config:
    global_batch: int = 4
    lr: float = 0.1
    optimizer: str = "sgd"
    warmup_epochs: float = 0.0
    folder: str = ""


def mean_square(model, batch):
    x, y = batch
    return {"val_loss": ht.Weighted((model(x) - y).square().sum(), len(y))}


def main(comm, config):
    model = small.make_model()
    trainer = ht.Trainer(
        comm, model, ht.make_optimizer(config.optimizer, model, lr=config.lr), small.loss_fn,
        callbacks=[ht.Warmup(config.warmup_epochs), ht.Evaluate(small.make_data(), mean_square)]
        + ([ht.Checkpoint(config.folder), ht.JsonLines(f"{config.folder}/log.jsonl")] if config.folder else []),
    )  # fmt: skip
    plan = ht.BatchPlan(config.global_batch, comm.size, reference_batch=2)
    trainer.fit(ht.Loader(small.make_data(), plan, comm), epochs=50, resume="auto" if config.folder else None)
    return "after fit"


@pytest.fixture
def trial_run(tmp_path, monkeypatch):
    """Runs `main` as a trial and returns what `ht.run` returned and the events."""

    def start(main=main, config=None, **order):
        events = tmp_path / "events.jsonl"
        order = TrialOrder(str(events), **{"metric": "val_loss", "sign": "<=", "bound": 0.05, **order})
        (tmp_path / "order.json").write_text(json.dumps({"runs": [asdict(order)], "backend": ""}))
        monkeypatch.setenv("HVD_TRAINER_TRIAL", str(tmp_path / "order.json"))
        returned = ht.run(main, Config() if config is None else config, engine="single", argv=[])
        return returned, [json.loads(line) for line in events.read_text().splitlines()]

    start.events = lambda: [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    yield start
    assert trial.current() is None


def test_ends_at_the_target_and_does_not_go_on_after_fit(trial_run):
    returned, events = trial_run(fields={"lr": 0.05, "global_batch": 7}, expect={"peak_lr": 0.175, "global_batch": 7, "optimizer": "sgd"})
    end = events[-1]
    assert returned is None and end["outcome"] == "met" and end["value"] <= 0.05
    assert end["samples"] == 7 * end["step"] and end["train_s"] > 0 and 0 < end["step_s"] < end["train_s"]
    values = [event["val_loss"] for event in events if event["event"] == "check"]
    assert all(value > 0.05 for value in values[:-1]) and values[-1] == end["value"]
    start = next(event for event in events if event["event"] == "start")
    assert (start["rule"], start["reference_batch"], start["lr_scale"], start["num_samples"]) == ("linear", 2.0, 3.5, small.NUM_SAMPLES)


def test_checks_are_at_most_a_twentieth_apart(trial_run):
    _, events = trial_run(bound=-1.0)
    steps = [event["step"] for event in events if event["event"] == "check"]
    assert steps[:3] == [1, 2, 3] and events[-1]["outcome"] == "script_end" and steps[-1] == 200
    assert all(after <= before * 1.05 + 1 for before, after in zip(steps, steps[1:]))
    assert len(steps) < 100


def test_the_watch_changes_no_number(trial_run, monkeypatch):
    """Evaluating in the middle of an epoch leaves the training as it was."""
    losses = []
    original = ht.Trainer.fit
    monkeypatch.setattr(ht.Trainer, "fit", lambda self, *a, **k: _fit_and_note(original, self, losses, *a, **k))
    trial_run(bound=-1.0)
    monkeypatch.delenv("HVD_TRAINER_TRIAL")
    ht.run(main, Config(), engine="single", argv=[])
    assert torch.equal(*losses)


def _fit_and_note(original, trainer, found, *args, **kwargs):
    try:
        return original(trainer, *args, **kwargs)
    finally:
        found.append(small.parameters(trainer))


@pytest.mark.parametrize(("caps", "step"), [({"max_steps": 9}, 9), ({"max_samples": 10}, 3), ({"max_train_s": 1e-9}, 1)])
def test_caps(trial_run, caps, step):
    _, events = trial_run(bound=-1.0, **caps)
    assert (events[-1]["outcome"], events[-1]["step"]) == ("cap", step)


def test_a_loss_that_grows_is_diverged_before_it_is_nan(trial_run):
    _, events = trial_run(fields={"lr": 3.0})
    assert events[-1]["outcome"] == "diverged" and events[-1]["step"] < 30 and "loss" in events[-1]["message"]


def test_a_loss_that_is_not_finite_is_diverged(trial_run):
    def main(comm, config):
        raise NonFiniteError("the loss is nan")

    with pytest.raises(NonFiniteError):
        trial_run(main)
    assert trial_run.events()[-1]["outcome"] == "diverged"


def test_nothing_is_written_to_the_users_folders(trial_run, tmp_path):
    _, events = trial_run(config=Config(folder=str(tmp_path / "mine")), max_steps=5)
    assert events[-1]["outcome"] in ("cap", "met") and not (tmp_path / "mine").exists()
    start = next(event for event in events if event["event"] == "start")
    assert start["checkpoints"] == [str(tmp_path / "mine")]  # who trains with the result needs another one


def test_paths_of_the_config_are_written_as_text(trial_run, tmp_path):
    _, events = trial_run(config=Config(folder=tmp_path / "mine"), max_steps=1)
    assert next(event for event in events if event["event"] == "config")["config"]["folder"] == str(tmp_path / "mine")


@pytest.mark.parametrize(
    ("config", "order", "words"),
    [
        ({"lr": 0.1, "batchsize": 3}, {}, "global_batch: int = 64"),
        ({"lr": 0.1, "global_batch": 3}, {"needs": ("global_batch", "lr", "optimizer")}, 'optimizer: str = "sgd"'),
        (Config(), {"metric": "accuracy"}, "allowed: loss, val_loss\n  fix:     one of these in --target"),
        (Config(), {"fields": {"global_batch": 8}, "expect": {"global_batch": 16}}, "16"),
        (Config(), {"fields": {"lr": 0.2}, "expect": {"peak_lr": 0.2}}, "peak_lr of the run is 0.4"),
    ],
)
def test_refused_with_how_to_change_it(trial_run, config, order, words):
    with pytest.raises(TrialRefused) as caught:
        trial_run(config=config, **order)
    assert words in str(caught.value)
    assert trial_run.events()[-1]["kind"] == "TrialRefused"


@pytest.mark.parametrize("config", [Config(), asdict(Config())], ids=["dataclass", "mapping"])
def test_values_arrive_as_they_were_sent(config):
    fields = {"global_batch": 8, "lr": 1.2345678901234567e-05, "optimizer": "adamw", "warmup_epochs": 0.5}
    changed = TrialOrder("", "loss", "<=", 1.0, fields).apply(config)
    values = changed if isinstance(changed, dict) else asdict(changed)
    assert {name: values[name] for name in fields} == fields and [type(values[name]) for name in fields] == [int, float, str, float]


def test_without_a_config(trial_run, tmp_path, monkeypatch):
    trial_run(max_steps=1)
    with pytest.raises(TrialRefused, match="has no config"):
        ht.run(lambda comm: None, engine="single", argv=[])


def test_an_error_is_written_down(trial_run):
    def main(comm, config):
        raise MemoryError

    with pytest.raises(MemoryError):
        trial_run(main)
    assert (trial_run.events()[-1]["kind"], trial_run.events()[-1]["ours"]) == ("MemoryError", False)


def test_outside_of_tune_nothing_is_watched(monkeypatch):
    monkeypatch.delenv("HVD_TRAINER_TRIAL", raising=False)
    assert ht.run(main, Config(), engine="single", argv=[]) == "after fit"
