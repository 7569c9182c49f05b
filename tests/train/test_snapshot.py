"""What a checkpoint holds: a resume has the numbers of a straight run, and another recipe is refused."""

import pytest
import torch
from torch.optim import lr_scheduler

import hvd_trainer as ht
from hvd_trainer.checkpoint.store import load
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import CheckpointError, ConfigError
from tests.fake_comm import run_threads
from tests.train.small import (
    PURE,
    SCHEDULERS,
    STEPS_PER_EPOCH,
    StopAt,
    Watch,
    loss_fn,
    make_data,
    make_loader,
    make_model,
    make_trainer,
    parameters,
    train_in_two_parts,
)


@pytest.mark.parametrize("stop_at", [2, 4, 7])
@pytest.mark.parametrize("kind", [*SCHEDULERS, *(f"pure {name}" for name in PURE)])
def test_resumed_equals_straight(kind, stop_at, tmp_path):
    """Killed within an epoch and at its end, with every schedule, warm-up, momentum and dropout: the same bits."""
    options = {"schedule": PURE[kind[5:]]} if kind.startswith("pure ") else {"scheduler": SCHEDULERS[kind]}

    def make(callbacks):
        return make_trainer(callbacks=[ht.Warmup(1.2), *callbacks], dropout=0.3, **options)

    watch = Watch()
    straight = make([watch])
    expected = straight.fit(make_loader(straight.comm), epochs=3)
    resumed, rest, history = train_in_two_parts(make, stop_at, tmp_path, epochs=3)
    done = 12 - len(rest.rates)
    assert done == (stop_at - 1 if stop_at % STEPS_PER_EPOCH == 0 else stop_at)  # an epoch's last checkpoint is due after its row
    assert rest.rates == watch.rates[done:]
    assert rest.losses == watch.losses[done:]
    assert torch.equal(parameters(resumed), parameters(straight))
    assert [row["loss"] for row in history] == [row["loss"] for row in expected]
    assert [row["lr"] for row in history] == [row["lr"] for row in expected]


def test_adamw_resumes_to_the_same_bits(tmp_path):
    def make(callbacks):
        return make_trainer(callbacks=callbacks, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), lr_scaling="sqrt")

    straight = make([])
    straight.fit(make_loader(straight.comm), epochs=3)
    resumed, _, _ = train_in_two_parts(make, 6, tmp_path, epochs=3)
    assert torch.equal(parameters(resumed), parameters(straight))


def test_resume_on_another_number_of_ranks_keeps_the_recipe(tmp_path):
    """Started on 3 ranks without a reference batch (factor 3), resumed on 2 and on 1: still 3, and the same answer."""

    def make(comm, callbacks):
        return make_trainer(comm, [ht.Warmup(1.5), *callbacks], schedule=ht.schedules.linear())

    def straight(comm):
        trainer = make(comm, [])
        trainer.fit(make_loader(comm, reference_batch=None), epochs=3)
        return parameters(trainer)

    def first(comm):
        with pytest.raises(StopAt.Killed):
            make(comm, [ht.Checkpoint(tmp_path, every_steps=1), StopAt(3)]).fit(make_loader(comm, reference_batch=None), epochs=3)

    def second(comm):
        with pytest.raises(StopAt.Killed):
            trainer = make(comm, [ht.Checkpoint(tmp_path, every_steps=1), StopAt(7)])
            trainer.fit(make_loader(comm, reference_batch=None), epochs=3, resume="auto")

    def third(comm):
        trainer = make(comm, [ht.Checkpoint(tmp_path)])
        trainer.fit(make_loader(comm, reference_batch=None), epochs=3, resume="auto")
        return parameters(trainer), trainer.optimizer.lr_scale

    expected = run_threads(3, straight)[0]
    run_threads(3, first)
    run_threads(2, second)
    found, scale = run_threads(1, third)[0]
    assert scale == 3.0
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_resume_with_nothing_left_to_do(tmp_path):
    for length in ({"epochs": 1}, {"steps": 6}):
        folder = tmp_path / str(length)
        first = make_trainer(callbacks=[ht.Checkpoint(folder)])
        expected = first.fit(make_loader(first.comm), **length)
        again = make_trainer(callbacks=[ht.Checkpoint(folder)])
        found = again.fit(make_loader(again.comm), resume="auto", **length)
        assert [(row["epoch"], row["step"], row["loss"]) for row in found] == [(row["epoch"], row["step"], row["loss"]) for row in expected]
        assert torch.equal(parameters(again), parameters(first))


def test_resume_auto_without_a_checkpoint_starts(tmp_path):
    trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path / "none")])
    assert trainer.fit(make_loader(trainer.comm), epochs=1, resume="auto")[-1]["step"] == 4
    with pytest.raises(ConfigError, match="without ht.Checkpoint"):
        make_trainer().fit(make_loader(SingleCommunicator()), epochs=1, resume="auto")


def test_resume_from_a_folder_and_from_one_checkpoint(tmp_path):
    first = make_trainer(callbacks=[ht.Checkpoint(tmp_path / "a", keep=9)])
    first.fit(make_loader(first.comm), epochs=3)
    for source, step in ((tmp_path / "a", 12), (str(tmp_path / "a" / "step-0000000004"), 4)):
        watch = Watch()
        trainer = make_trainer(callbacks=[watch])
        trainer.fit(make_loader(trainer.comm), epochs=4, resume=source)
        assert watch.reports[0].step == step + 1
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        make_trainer().fit(make_loader(SingleCommunicator()), epochs=4, resume=str(tmp_path / "b"))


@pytest.mark.parametrize("kinds", [("plain", "whole"), ("whole", "plain"), ("part", "whole"), ("plain", "part")], ids="-".join)
def test_compiled_and_plain_models_go_on_from_each_other(kinds, tmp_path):
    def fit(kind, folder, epochs):
        model, ema = make_model(), ht.EMA(0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if kind == "part":
            model[0] = torch.compile(model[0], backend="eager")
        run = torch.compile(model, backend="eager") if kind == "whole" else model
        trainer = ht.Trainer(SingleCommunicator(), run, optimizer, loss_fn, callbacks=[ema, ht.Checkpoint(tmp_path / folder)])
        trainer.fit(make_loader(trainer.comm), epochs=epochs, resume="auto")
        return parameters(trainer), torch.cat([p.flatten() for p in ema.model.parameters()])

    with torch.compiler.set_stance("force_eager"):  # the names of a compiled model, without the minutes
        fit(kinds[0], "a", 1)
        state = load(tmp_path / "a")[0]
        assert list(state["model"]) == list(make_model().state_dict())
        make_model().load_state_dict(state["model"])
        found, straight = fit(kinds[1], "a", 2), fit("plain", "b", 2)
    assert torch.equal(found[0], straight[0]) and torch.equal(found[1], straight[1])


def test_state_of_callbacks_is_kept(tmp_path):
    class Counter(ht.Callback):
        def __init__(self):
            self.count = 0

        def step_end(self, trainer, report):
            self.count += 1

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    counters = []

    def make(callbacks):
        counters[:] = [Counter(), Counter()]
        counters[1].count = 100
        return make_trainer(callbacks=[*counters, *callbacks])

    train_in_two_parts(make, 6, tmp_path, epochs=3)
    assert [counter.count for counter in counters] == [12, 112]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": torch.nn.Linear(3, 1).double()}, "another model"),
        ({"global_batch": 5}, "global_batch = 4, this run has 5"),
        ({"seed": 1}, "seed = 0, this run has 1"),
        ({"reference_batch": 4}, "reference batch 2, this run asks for 4"),
        ({"num_samples": 15}, "num_samples = 14, this run has 15"),
        ({"optimizer": torch.optim.AdamW}, "optimizer = SGD, this run has AdamW"),
        ({"schedule": "StepLR"}, "schedule"),
        ({"lr_scaling": "sqrt"}, "lr_scaling = linear, this run has sqrt"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_resumes_that_are_refused(change, words, tmp_path):
    first = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
    first.fit(make_loader(first.comm), epochs=1)
    comm = SingleCommunicator()
    model = change.get("model", make_model())
    make = change.get("optimizer", lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    optimizer = make(model.parameters())
    schedule = lr_scheduler.StepLR(optimizer, 1) if "schedule" in change else None
    trainer = ht.Trainer(comm, model, optimizer, loss_fn, schedule=schedule, callbacks=[ht.Checkpoint(tmp_path)],
                         lr_scaling=change.get("lr_scaling", "linear"))  # fmt: skip
    options = {name: change[name] for name in ("global_batch", "seed", "reference_batch", "num_samples") if name in change}
    with pytest.raises(CheckpointError, match=words):
        trainer.fit(make_loader(comm, **options), epochs=2, resume="auto")
    assert [path.name for path in tmp_path.iterdir()] == ["step-0000000004"]


def test_resume_says_which_rate_counts(tmp_path, capsys):
    first = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
    first.fit(make_loader(first.comm), epochs=1)
    watch = Watch()
    again = make_trainer(callbacks=[watch, ht.Checkpoint(tmp_path)], optimizer=lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9))
    again.fit(make_loader(again.comm), epochs=2, resume="auto")
    assert watch.rates == pytest.approx([0.2] * 4)
    assert "the learning rate 0.7 of this start is not used, the checkpoint goes on with 0.1; another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"warmup": {"epochs": 2}}, {"warmup": {"epochs": 1}}, "warmup = 8 steps from the reference rate, this run has 4 steps from"),
        ({"warmup": {"epochs": 2}}, {}, "this run has none"),
        ({"warmup": {"epochs": 2}}, {"warmup": {"epochs": 2, "start_factor": 0.1}}, "this run has 8 steps from 0.1 x the peak"),
        ({"schedule": ht.schedules.cosine(20)}, {"schedule": ht.schedules.cosine(30)}, r"schedule = cosine\(total_epochs=20, final=0\)"),
        ({}, {"schedule": ht.schedules.cosine(30)}, r"schedule = constant\(\), this run has cosine"),
        ({"schedule": loss_fn}, {"schedule": make_data}, "schedule = function loss_fn, this run has function make_data"),
        ({}, {"groups": 2}, r"param groups of \[4\] tensors, this run's optimizer has \[2, 2\]"),
    ],
)
def test_changed_recipes_are_refused(first, second, words, tmp_path):
    def fit(warmup=None, groups=1, schedule=None, **fit):
        if schedule in (loss_fn, make_data):  # only its name counts

            def function(step):
                return 1.0

            function.__qualname__, schedule = schedule.__qualname__, function
        callbacks = [ht.Checkpoint(tmp_path), *([ht.Warmup(**warmup)] if warmup else [])]

        def optimizer(params):
            params = list(params)
            size = len(params) // groups
            return torch.optim.SGD([{"params": params[at : at + size]} for at in range(0, len(params), size)], lr=0.1)

        trainer = make_trainer(callbacks=callbacks, schedule=schedule, optimizer=optimizer)
        trainer.fit(make_loader(trainer.comm), **fit)

    fit(**first, epochs=1)
    fit(**first, epochs=2, resume="auto")
    with pytest.raises(CheckpointError, match=words):
        fit(**second, epochs=3, resume="auto")


def test_resume_says_which_momentum_counts(tmp_path, capsys):
    def fit(epochs, **options):
        trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path)], optimizer=lambda p: torch.optim.SGD(p, lr=0.1, **options))
        trainer.fit(make_loader(trainer.comm), epochs=epochs, resume="auto")
        return capsys.readouterr().err

    fit(1, momentum=0.9, weight_decay=0.01)
    assert "note" not in fit(2, momentum=0.9, weight_decay=0.01)
    assert "momentum=0.5 (goes on with 0.9), weight_decay=0 (goes on with 0.01) of this start" in fit(3, momentum=0.5)


@pytest.mark.parametrize("kind", ["OneCycleLR", "CyclicLR"])
def test_a_momentum_that_a_scheduler_moves_is_no_change(kind, tmp_path, capsys):
    train_in_two_parts(lambda callbacks: make_trainer(callbacks=callbacks, scheduler=SCHEDULERS[kind]), 2, tmp_path, epochs=1)
    assert "note" not in capsys.readouterr().err


def test_a_resume_with_nothing_left_to_do_says_so(tmp_path, capsys):
    for start in range(2):
        trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
        trainer.fit(make_loader(trainer.comm), epochs=1, resume="auto")
        assert ("nothing left to do: 4 steps are done" in capsys.readouterr().out) == (start == 1)
