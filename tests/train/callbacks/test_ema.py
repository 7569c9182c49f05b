"""The averaged weights against the formula, on several ranks, measured and resumed."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads
from tests.train.small import make_data, make_loader, make_trainer


class Formula(ht.Callback):
    def __init__(self, decay):
        self.decay, self.average = decay, None

    def step_end(self, trainer, report):
        now = [p.detach().clone() for p in trainer.model.parameters()]
        if self.average is None:
            self.average = now
        else:
            self.average = [self.decay * a + (1 - self.decay) * b for a, b in zip(self.average, now)]


def test_formula_on_two_ranks():
    def rank(comm):
        ema, formula = ht.EMA(0.9), Formula(0.9)
        trainer = make_trainer(comm, callbacks=[ema, formula])
        trainer.fit(make_loader(comm), epochs=2)
        for mine, expected in zip(ema.model.parameters(), formula.average):
            torch.testing.assert_close(mine, expected, rtol=1e-12, atol=0)
        ht.replica_check(ema.model, comm)

    run_threads(2, rank)


def test_evaluate_measures_the_average_and_resume_keeps_it(tmp_path):
    def output(model, data):
        return {"out": ht.Weighted(model(data[0]).sum(), 1)}

    def fit(folder, epochs):
        ema = ht.EMA(0.5)
        callbacks = [ema, ht.Evaluate(make_data(3), output, weights=ema), ht.Checkpoint(folder)]
        trainer = make_trainer(callbacks=callbacks)
        row = trainer.fit(make_loader(trainer.comm), epochs=epochs, resume="auto")[-1]
        x = make_data(3).tensors[0]
        assert row["out"] == pytest.approx(ema.model(x).sum().item(), rel=1e-12)
        assert row["out"] != pytest.approx(trainer.model(x).sum().item(), rel=1e-6)
        return row["out"]

    fit(tmp_path / "stopped", 1)
    assert fit(tmp_path / "stopped", 3) == fit(tmp_path / "straight", 3)


def test_wrong_use():
    with pytest.raises(ConfigError, match="decay"):
        ht.EMA(1.0)
    with pytest.raises(ConfigError, match=r"before training|EMA.model"):
        ht.EMA(0.9).model  # noqa: B018
