"""The loop: rows, hooks, and a resume that has the numbers of a straight run."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import CheckpointError, ConfigError, LossError, NonFiniteError
from hvd_trainer.plan import BatchPlan
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads
from tests.train.small import (
    GLOBAL_BATCH,
    NUM_SAMPLES,
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

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, 1.0, 4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=30),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.05, max_lr=0.2, step_size_up=5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.5),
}
PURE = {
    "none": None,
    "cosine": ht.schedules.cosine(total_epochs=5),
    "multistep": ht.schedules.multistep([1.5, 3]),
    "function": lambda step: 0.97**step,
}


def rates_of_a_scheduler_alone(make, losses):
    """The rates of each of the epochs' steps where the scheduler works on an optimizer that nobody scales."""
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    scheduler, rates = make(plain), []
    per_step = isinstance(scheduler, (lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR))
    for loss in losses:
        for _ in range(STEPS_PER_EPOCH):
            plain.step()
            rates.append(plain.param_groups[0]["lr"])
            if per_step:
                scheduler.step()
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
            scheduler.step(loss)
        elif not per_step:
            scheduler.step()
    return rates


# -- rates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm_epochs", [0, 1.3])
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_torch_schedulers_times_scale_times_warm_up(kind, warm_epochs):
    """Warnings are errors here: torch must not complain about the order of optimizer.step and scheduler.step."""
    watch = Watch()
    trainer = make_trainer(callbacks=[ht.Warmup(warm_epochs), watch], scheduler=SCHEDULERS[kind])
    history = trainer.fit(make_loader(trainer.comm), epochs=4)
    own = rates_of_a_scheduler_alone(SCHEDULERS[kind], [row["loss"] for row in history])
    ramp = [min(1.0, 0.5 + 0.5 * step / (warm_epochs * STEPS_PER_EPOCH)) if warm_epochs else 1.0 for step in range(16)]
    assert watch.rates == pytest.approx([2 * rate * warm for rate, warm in zip(own, ramp)], rel=1e-12)
    assert [row["lr"] for row in history] == watch.rates[3::4]
    if kind == "ReduceLROnPlateau":
        assert len(set(own)) > 1


@pytest.mark.parametrize("kind", PURE)
def test_pure_schedules_times_scale_times_warm_up(kind):
    watch = Watch()
    trainer = make_trainer(callbacks=[watch, ht.Warmup(steps=5)], schedule=PURE[kind])
    trainer.fit(make_loader(trainer.comm), epochs=4)
    timeline = trainer.learning_rate.timeline
    function = PURE[kind] or (lambda step: 1.0)
    factors = [function(step) if kind in ("none", "function") else function(step, timeline) for step in range(16)]
    ramp = [min(1.0, 0.5 + 0.5 * step / 5) for step in range(16)]
    assert watch.rates == pytest.approx([0.2 * factor * warm for factor, warm in zip(factors, ramp)], rel=1e-12)


@pytest.mark.parametrize("kind", ["StepLR", "OneCycleLR", "ReduceLROnPlateau"])
def test_rates_are_the_same_on_any_number_of_ranks_apart_from_the_scale(kind):
    """A scheduler that every rank steps must not run N times as fast (accelerate#2926); plateaus see the reduced loss."""

    def rank_main(comm):
        watch = Watch()
        trainer = make_trainer(comm, [watch], scheduler=SCHEDULERS[kind], lr_scaling=float(comm.size))
        history = trainer.fit(make_loader(comm, reference_batch=None), epochs=3)
        return watch.rates, history[-1]["step"]

    one = run_threads(1, rank_main)[0]
    for size in (2, 3):
        found = run_threads(size, rank_main)
        assert all(ranks == found[0] for ranks in found)
        if kind != "ReduceLROnPlateau":  # another rate is another loss
            assert found[0][0] == pytest.approx([rate * size for rate in one[0]], rel=1e-12)
        assert found[0][1] == one[1] == 12


def test_four_ranks_warm_up_over_five_epochs_of_ten_steps():
    """Base .1 on 4 ranks: .1 at first, .106 after one step, exactly .4 from the end of the warm-up on."""

    def rank_main(comm):
        watch = Watch()
        trainer = make_trainer(comm, [ht.Warmup(epochs=5), watch])
        trainer.fit(make_loader(comm, reference_batch=None, num_samples=40), epochs=6)
        return watch.rates

    rates = run_threads(4, rank_main)[0]
    assert rates[:2] == pytest.approx([0.1, 0.106])
    assert rates[49] < rates[50] == rates[59] == 0.4
    assert max(rates) == 0.4


def test_several_groups_keep_their_proportions():
    def two_groups(params):
        params = list(params)
        return torch.optim.SGD([{"params": params[:2], "lr": 0.1}, {"params": params[2:], "lr": 0.01}])

    for options in ({"schedule": lambda step: 1 / (1 + step)}, {"scheduler": lambda o: lr_scheduler.ExponentialLR(o, 0.5)}):
        watch = Watch()
        trainer = make_trainer(callbacks=[watch], optimizer=two_groups, **options)
        trainer.fit(make_loader(trainer.comm), epochs=2)
        assert all(report.lr[0] == pytest.approx(10 * report.lr[1]) for report in watch.reports)
        assert watch.reports[0].lr == pytest.approx([0.2, 0.02])


def test_group_that_is_added_while_training():
    class Add(ht.Callback):
        def step_end(self, trainer, report):
            if report.step == 2:
                trainer.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1).double())], "lr": 0.02})

    for options in ({}, {"scheduler": lambda o: lr_scheduler.ExponentialLR(o, 0.5)}):
        watch = Watch()
        trainer = make_trainer(callbacks=[Add(), watch], **options)
        trainer.fit(make_loader(trainer.comm), epochs=1)
        assert [len(report.lr) for report in watch.reports] == [1, 1, 2, 2]
        assert watch.reports[3].lr == pytest.approx([0.2, 0.04])


def test_between_steps_the_optimizer_holds_the_rate_that_is_logged():
    """A torch scheduler works in reference rates; whoever reads or saves the groups meanwhile must not see those."""

    class Look(ht.Callback):
        seen: list = []

        def look(self, trainer, *_):
            self.seen.append(trainer.optimizer.param_groups[0]["lr"] / trainer.optimizer.param_groups[0]["reference_lr"])

        step_end = epoch_end = row_ready = fit_end = look

    trainer = make_trainer(callbacks=[Look()], scheduler=lambda o: lr_scheduler.LambdaLR(o, lambda n: 1.0))
    trainer.fit(make_loader(trainer.comm), epochs=2)
    assert Look.seen == pytest.approx([2.0] * len(Look.seen))


# -- rows and hooks -------------------------------------------------------------------------------------------------


def test_rows():
    watch = Watch()
    trainer = make_trainer(callbacks=[watch])
    history = trainer.fit(make_loader(trainer.comm), epochs=3)
    assert [(row["epoch"], row["step"]) for row in history] == [(1, 4), (2, 8), (3, 12)]
    sizes = [4, 4, 4, 2]
    for number, row in enumerate(history):
        losses = watch.losses[4 * number : 4 * number + 4]
        assert row["loss"] == pytest.approx(sum(size * loss for size, loss in zip(sizes, losses)) / NUM_SAMPLES)
        assert row["samples_per_s"] > 0
    assert [report.samples for report in watch.reports] == sizes * 3
    assert [report.step for report in watch.reports] == list(range(1, 13))
    assert all(report.grad_norm is None for report in watch.reports)
    assert history[-1]["loss"] < history[0]["loss"]


def test_part_of_an_epoch():
    watch = Watch()
    trainer = make_trainer(callbacks=[watch])
    history = trainer.fit(make_loader(trainer.comm), steps=6)
    assert [(row["epoch"], row["step"]) for row in history] == [(1, 4), (2, 6)]
    assert history[1]["loss"] == pytest.approx((watch.losses[4] + watch.losses[5]) / 2)
    assert len(trainer.history) == 1


def test_fit_again_goes_on():
    straight = make_trainer(schedule=ht.schedules.cosine(total_epochs=4), callbacks=[ht.Warmup(1.5)])
    expected = straight.fit(make_loader(straight.comm), epochs=4)
    trainer = make_trainer(schedule=ht.schedules.cosine(total_epochs=4), callbacks=[ht.Warmup(1.5)])
    loader = make_loader(trainer.comm)
    trainer.fit(loader, steps=2)
    trainer.fit(loader, steps=3)
    trainer.fit(loader, epochs=2)
    found = trainer.fit(loader, epochs=4)
    assert torch.equal(parameters(trainer), parameters(straight))
    timeless = [{name: value for name, value in row.items() if name != "samples_per_s"} for row in found]
    assert timeless == [{name: value for name, value in row.items() if name != "samples_per_s"} for row in expected]
    with pytest.raises(ConfigError, match="another loader"):
        trainer.fit(make_loader(trainer.comm), epochs=5)


def test_hooks_in_order():
    watch = Watch()
    trainer = make_trainer(callbacks=[watch])
    loader = make_loader(trainer.comm)
    trainer.fit(loader, steps=5)
    steps = [("step_end", step) for step in (1, 2, 3, 4)]
    first = [("fit_start", 0), *steps, ("epoch_end", 1), ("row_ready", 1), ("step_end", 5), ("epoch_end", 2), ("row_ready", 2), ("fit_end", 5)]
    assert watch.hooks == first
    watch.hooks.clear()
    trainer.fit(loader, steps=8)
    steps = [("step_end", step) for step in (6, 7, 8)]
    assert watch.hooks == [("fit_start", 5), *steps, ("epoch_end", 2), ("row_ready", 2), ("fit_end", 8)]


def test_callbacks_run_in_the_order_of_the_list_and_all_columns_come_before_any_row_ready():
    calls = []

    class Named(ht.Callback):
        def __init__(self, name):
            self.name = name

        def epoch_end(self, trainer, row):
            row[self.name] = 1.0
            calls.append(f"end {self.name}")

        def row_ready(self, trainer, row):
            calls.append(f"ready {self.name} {'a' in row and 'b' in row}")

    trainer = make_trainer(callbacks=[Named("a"), Named("b")])
    history = trainer.fit(make_loader(trainer.comm), epochs=1)
    assert calls == ["end a", "end b", "ready a True", "ready b True"]
    assert history[0]["a"] == history[0]["b"] == 1.0


def test_columns_of_any_kind_of_number_survive_a_checkpoint(tmp_path):
    class Columns(ht.Callback):
        def epoch_end(self, trainer, row):
            row.update(numpy=np.float32(0.5), count=np.int64(3), tensor=torch.tensor(0.25), text="x", none=None)

    def make(callbacks):
        return make_trainer(callbacks=[Columns(), *callbacks, ht.JsonLines(tmp_path / "log.jsonl")])

    _, _, history = train_in_two_parts(make, 5, tmp_path / "c", epochs=2)
    for row in history:
        found = {name: row[name] for name in ("numpy", "count", "tensor", "text", "none")}
        assert found == {"numpy": 0.5, "count": 3, "tensor": 0.25, "text": "x", "none": None}
        assert [type(value) for value in found.values()] == [float, int, float, str, type(None)]
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["numpy"] == 0.5


def test_clipping_is_reported():
    watch = Watch()
    trainer = make_trainer(callbacks=[watch], clip_norm=0.01)
    trainer.fit(make_loader(trainer.comm), steps=2)
    assert all(report.grad_norm > 0.01 for report in watch.reports)
    model = make_model()
    moved = (parameters(trainer) - torch.cat([p.detach().flatten() for p in model.parameters()])).norm()
    assert moved <= 0.2 * 0.01 * (1 + 1.9) * 1.001


def test_plain_losses():
    def mean(model, batch):
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    results = []
    for function, reduction in ((loss_fn, None), (mean, "mean")):
        trainer = make_trainer(loss_reduction=reduction)
        trainer.loss_fn = function
        history = trainer.fit(make_loader(trainer.comm, micro_batch=3), epochs=2)
        results.append((parameters(trainer), history[-1]["loss"]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-14)


def test_numpy_length_of_the_run():
    trainer = make_trainer()
    assert trainer.fit(make_loader(trainer.comm), steps=np.int64(2))[-1]["step"] == 2


# -- resume ---------------------------------------------------------------------------------------------------------


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
    assert "0.7" in capsys.readouterr().err


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


@pytest.mark.parametrize("length", [5, 4])
def test_plateau_on_a_metric_of_every_second_epoch(length):
    def plateau(optimizer):
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return ht.schedules.TorchSchedule(scheduler, monitor="n")

    def fit(**options):
        metrics = lambda model, data: {"n": ht.Weighted(len(data[0]), 1)}  # noqa: E731
        trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), metrics, every_epochs=2, **options)], scheduler=plateau)
        return trainer.fit(make_loader(trainer.comm), epochs=length)

    assert [row["lr"] for row in fit()] == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.1][:length])
    with pytest.raises(ConfigError, match="ReduceLROnPlateau watches 'n'(.|\n)*val_n"):
        fit(prefix="val_")


# -- what is refused ------------------------------------------------------------------------------------------------


def test_numbers_of_other_libraries():
    watch = Watch()
    trainer = make_trainer(callbacks=[watch, ht.Warmup(epochs=Fraction(5, 4))], clip_norm=np.float32(0.5), clip_value=Fraction(9))
    trainer.fit(make_loader(trainer.comm), epochs=torch.tensor(2))
    assert watch.rates == pytest.approx([0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.2, 0.2])
    assert ht.Warmup(np.int64(3)).num_steps(2, 1) == 6
    for bad in ("1", True, math.nan, torch.ones(2)):
        with pytest.raises(ConfigError, match="Warmup"):
            ht.Warmup(bad)
        with pytest.raises(ConfigError, match="Warmup"):
            ht.Warmup(1, start_factor=bad)


@pytest.mark.parametrize("precision", ["fp32", torch.float32, "bfloat16", torch.bfloat16, torch.float16, "float16"], ids=str)
def test_names_of_precision(precision):
    assert make_trainer(precision=precision).fit(make_loader(SingleCommunicator()), steps=1) if "32" in str(precision) else make_trainer(precision=precision)
    for bad in (torch.float64, "half", 16, None):
        with pytest.raises(ConfigError, match="precision="):
            make_trainer(precision=bad)


def test_what_fit_cannot_take():
    comm = SingleCommunicator()
    for resume in (True, False, 3):
        with pytest.raises(ConfigError, match=f"fit\\(resume={resume}\\)(.|\n)*resume=\"auto\""):
            make_trainer(comm).fit(make_loader(comm), epochs=1, resume=resume)
    with pytest.raises(ConfigError, match=r"fit\(DataLoader\)(.|\n)*ht.Loader.from_dataloader"):
        make_trainer(comm).fit(torch.utils.data.DataLoader(make_data()), epochs=1)
    with pytest.raises(ConfigError, match=r"fit\(TensorDataset\)(.|\n)*ht.Loader\("):
        make_trainer(comm).fit(make_data(), epochs=1)


@pytest.mark.parametrize(
    "length", [{"epochs": torch.tensor(1.7)}, {"steps": np.float64(2.0)}, {"steps": np.True_}, {}, {"epochs": 1, "steps": 1}, {"epochs": 0}, {"steps": -1}, {"epochs": 1.5}, {"epochs": True}, {"steps": "3"}], ids=repr
)
def test_lengths_that_cannot_be(length):
    trainer = make_trainer()
    with pytest.raises(ConfigError, match="fit"):
        trainer.fit(make_loader(trainer.comm), **length)


def test_parts_that_cannot_be():
    comm, model = SingleCommunicator(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    good = {"comm": comm, "model": model, "optimizer": optimizer, "loss_fn": loss_fn}
    wrapped = ht.DistributedOptimizer(torch.optim.SGD(make_model().parameters(), lr=0.1), comm)
    for change, words in [
        ({"comm": None}, "comm="),
        ({"model": torch.nn.ReLU()}, "no parameters"),
        ({"model": make_model().to("meta")}, "on meta"),
        ({"optimizer": wrapped}, "not wrapped"),
        ({"optimizer": None}, "optimizer="),
        ({"loss_fn": "mse"}, "loss_fn="),
        ({"callbacks": [ht.Progress]}, "not the class"),
        ({"callbacks": ht.Progress()}, "a list of callbacks"),
        ({"callbacks": None}, "a list of callbacks"),
        ({"schedule": 0.1}, "schedule="),
        ({"lr_scaling": "double"}, "lr_scaling="),
    ]:
        with pytest.raises(ConfigError, match=words):
            ht.Trainer(**{**good, **change})


@pytest.mark.parametrize("factor", [math.nan, -1.0, math.inf])
def test_schedules_that_give_no_rate(factor):
    trainer = make_trainer(schedule=lambda step: factor if step == 2 else 1.0)
    with pytest.raises(ConfigError, match="learning rate"):
        trainer.fit(make_loader(trainer.comm), epochs=1)
    assert trainer.step == 2


def test_losses_that_cannot_be():
    for function, error in [
        (lambda model, batch: model(batch[0]).sum(), LossError),
        (lambda model, batch: ht.Weighted(model(batch[0]).sum() * math.nan, 1), NonFiniteError),
        (lambda model, batch: None, LossError),
    ]:
        trainer = make_trainer()
        trainer.loss_fn = function
        before = parameters(trainer).clone()
        with pytest.raises(error):
            trainer.fit(make_loader(trainer.comm), epochs=1)
        assert torch.equal(parameters(trainer), before)


def test_drop_last_and_whole_batches():
    trainer = make_trainer()
    history = trainer.fit(make_loader(trainer.comm, drop_last=True), epochs=2)
    assert history[-1]["step"] == 2 * (NUM_SAMPLES // GLOBAL_BATCH)


def test_ranks_equal_one_rank():
    """Uneven shares, micro-batches, a torch scheduler and metrics, through the whole Trainer."""

    def rank_main(comm):
        metrics = {"error": lambda model, data: ht.Weighted((model(data[0]) - data[1]).abs().sum(), len(data[0]))}
        callbacks = [ht.Warmup(1), ht.Evaluate(make_data(7), metrics, batch_size=2)]
        trainer = make_trainer(comm, callbacks, scheduler=SCHEDULERS["ReduceLROnPlateau"], clip_norm=1.0)
        history = trainer.fit(make_loader(comm, micro_batch=1), epochs=3)
        return parameters(trainer), [(row["loss"], row["error"], row["lr"]) for row in history]

    expected = run_threads(1, rank_main)[0]
    for size in (2, 4):
        for found in run_threads(size, rank_main):
            torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-14)
            for row, wanted in zip(found[1], expected[1], strict=True):
                assert row == pytest.approx(wanted, rel=1e-12)


def test_a_normalisation_frozen_by_eval_stays_frozen():
    trainer = make_trainer()
    trainer.model[2].eval()
    trainer.fit(make_loader(trainer.comm), epochs=1)
    assert [module.training for module in trainer.model] == [True, True, False, True]
    trainer = make_trainer()
    trainer.model.eval()
    trainer.fit(make_loader(trainer.comm), epochs=1)
    assert all(module.training for module in trainer.model)


def test_a_resume_with_nothing_left_to_do_says_so(tmp_path, capsys):
    for start in range(2):
        trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
        trainer.fit(make_loader(trainer.comm), epochs=1, resume="auto")
        assert ("nothing left to do: 4 steps are done" in capsys.readouterr().out) == (start == 1)


def test_how_gradients_travel_can_be_said(capsys):
    def rank_main(comm):
        model = torch.nn.Linear(2, 1)
        options = {"reduction": {"compression": "bf16", "reduce_through": "messages"}}
        trainer = ht.Trainer(comm, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: Weighted(m(b).sum(), len(b)), **options)
        trainer.fit(ht.Loader(torch.ones(4, 2), BatchPlan(4, comm.size), comm), epochs=1)
        with pytest.raises(ConfigError, match="compression"):
            ht.Trainer(comm, model, torch.optim.SGD(model.parameters(), lr=0.1), lambda m, b: None, reduction={"compress": "bf16"})

    run_threads(2, rank_main)
    assert "through messages in bf16 (as asked)" in capsys.readouterr().out
