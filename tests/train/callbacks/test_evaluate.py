"""Metrics in the rows, when they are due."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
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
