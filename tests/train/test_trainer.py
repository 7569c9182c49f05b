"""The loop: rates, rows, hooks."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError, LossError, NonFiniteError
from hvd_trainer.plan import BatchPlan
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads
from tests.train.small import (
    GLOBAL_BATCH,
    NUM_SAMPLES,
    PURE,
    SCHEDULERS,
    STEPS_PER_EPOCH,
    Watch,
    loss_fn,
    make_data,
    make_loader,
    make_model,
    make_trainer,
    parameters,
    train_in_two_parts,
)


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
