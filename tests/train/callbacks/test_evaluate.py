"""Metrics in the rows, when they are due."""

import json

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads
from tests.train.small import make_data, make_loader, make_trainer


def count(model, data):
    return {"n": ht.Weighted(len(data[0]), 1)}


def test_when():
    trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), count, every_epochs=2)])
    history = trainer.fit(make_loader(trainer.comm), epochs=5)
    assert [row.get("n") for row in history] == [None, 5.0, None, 5.0, 5.0]
    trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), count, every_epochs=9)])
    assert trainer.fit(make_loader(trainer.comm), steps=2)[-1]["n"] == 5.0


def test_it_does_not_disturb_the_training():
    """Frozen normalisation stays frozen, dropout is off meanwhile, no gradient is left, and the numbers are the same."""
    modes = []

    def metrics(model, data):
        modes.append([module.training for module in model.modules()])
        return {"x": ht.Weighted(model(data[0]).sum(), 1)}

    results = []
    for callbacks in ([], [ht.Evaluate(make_data(5), metrics)]):
        trainer = make_trainer(callbacks=callbacks, dropout=0.5)
        trainer.fit(make_loader(trainer.comm), epochs=2)
        results.append([p.detach().clone() for p in trainer.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))
    assert modes == [[False] * 5] * 2


@pytest.mark.parametrize("option", ["every_epochs", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_options_that_cannot_be(option, value):
    with pytest.raises(ConfigError, match=f"Evaluate\\({option}="):
        ht.Evaluate([1], count, **{option: value})


def constant(*names):
    return lambda model, data: {name: ht.Weighted(len(data[0]), len(data[0])) for name in names}


@pytest.mark.parametrize("name", ["loss", "epoch", "step", "lr", "samples_per_s"])
def test_a_metric_never_overwrites_a_column(name):
    def rank_main(comm):
        trainer = make_trainer(comm, callbacks=[ht.Evaluate(make_data(5), constant("x", name))])
        with pytest.raises(ConfigError, match=f"the metric '{name}' would overwrite(.|\n)*prefix=\"val_\""):
            trainer.fit(make_loader(comm), epochs=1)

    run_threads(2, rank_main)
    with pytest.raises(ConfigError, match=f"the metric '{name}' would overwrite"):
        ht.Evaluate(make_data(5), {name: count})
    trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), constant(name), prefix="val_")])
    row = trainer.fit(make_loader(trainer.comm), epochs=1)[0]
    assert row[f"val_{name}"] == 1.0
    assert row["step"] == 4


def test_two_sets_with_the_same_metric():
    twice = [ht.Evaluate(make_data(5), count), ht.Evaluate(make_data(6), count)]
    trainer = make_trainer(callbacks=twice)
    with pytest.raises(ConfigError, match="the metric 'n' would overwrite"):
        trainer.fit(make_loader(trainer.comm), epochs=1)
    trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), count), ht.Evaluate(make_data(6), count, prefix="ood_")])
    row = trainer.fit(make_loader(trainer.comm), epochs=1)[0]
    assert (row["n"], row["ood_n"]) == (5.0, 6.0)


class StopIn(ht.Callback):
    def __init__(self, hook, epoch):
        setattr(self, hook, lambda trainer, row: trainer.stop() if row["epoch"] == epoch else None)


def counting(calls):
    return lambda model, data: calls.append(1) or count(model, data)


@pytest.mark.parametrize("position", [0, 3])
@pytest.mark.parametrize("stop", ["early", "epoch_end", "row_ready"])
def test_the_last_row_has_the_metrics_however_the_run_ends(stop, position, tmp_path):
    """Decided by EarlyStop or by stop() in a row without evaluation; measured once."""
    calls = []
    callbacks = [ht.Evaluate(make_data(5), counting(calls), every_epochs=3), ht.Checkpoint(tmp_path / "c"), ht.JsonLines(tmp_path / "log")]
    callbacks.insert(position, ht.EarlyStop("loss", patience=1, min_delta=9.0) if stop == "early" else StopIn(stop, 2))
    trainer = make_trainer(callbacks=callbacks)
    history = trainer.fit(make_loader(trainer.comm), epochs=5)
    assert [row.get("n") for row in history] == [None, 5.0]
    assert len(calls) == 1
    again = make_trainer(callbacks=[ht.Checkpoint(tmp_path / "c")])
    assert again.fit(make_loader(again.comm), epochs=2, resume="auto")[-1]["n"] == 5.0
    if stop != "row_ready":
        assert json.loads((tmp_path / "log").read_text().splitlines()[-1])["n"] == 5.0


def test_stopped_in_an_epoch_that_was_evaluated():
    calls = []
    trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), counting(calls)), StopIn("row_ready", 2)])
    assert len(trainer.fit(make_loader(trainer.comm), epochs=5)) == len(calls) == 2
