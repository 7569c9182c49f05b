"""Early stop: after how many rows, in which direction, and the same after a resume."""

import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.train.small import make_loader, make_trainer


class Values(ht.Callback):
    def __init__(self, values):
        self.values = values

    def epoch_end(self, trainer, row):
        if self.values[row["epoch"] - 1] is not None:
            row["v"] = self.values[row["epoch"] - 1]


def epochs_run(values, folder=None, stop_at=None, **options):
    def fit(epochs):
        callbacks = [Values(values), ht.EarlyStop("v", **options)] + ([ht.Checkpoint(folder)] if folder else [])
        trainer = make_trainer(callbacks=callbacks)
        return trainer.fit(make_loader(trainer.comm), epochs=epochs, resume="auto" if folder else None)

    if stop_at:
        fit(stop_at)
    return len(fit(len(values)))


def test_patience_direction_and_delta():
    assert epochs_run([3, 2, 1, 1, 1, 1], patience=2) == 5
    assert epochs_run([3, 2, 1, 1, 0.5, 0.5, 0.5, 9], patience=2) == 7
    assert epochs_run([1, 2, 3, 3, 3, 3], mode="max", patience=2) == 5
    assert epochs_run([3, 2.9, 2.8, 2.7], patience=2, min_delta=0.5) == 3
    assert epochs_run([1, None, None, None, None, None, None, 1], patience=1) == 8
    assert epochs_run([float("nan")] * 4, patience=3) == 3


def test_the_count_survives_a_resume(tmp_path):
    assert epochs_run([3, 1, 1, 1, 1, 1], folder=tmp_path, stop_at=3, patience=2) == 4


def test_wrong_arguments_and_columns():
    for options in ({"mode": "least"}, {"patience": 0}, {"min_delta": -1}):
        with pytest.raises(ConfigError):
            ht.EarlyStop("v", **options)
    trainer = make_trainer(callbacks=[ht.EarlyStop("val_los")])
    with pytest.raises(ConfigError, match="val_los"):
        trainer.fit(make_loader(trainer.comm), epochs=1)
