"""Gradual unfreezing: who moves when, and the same after a resume."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads
from tests.train.small import make_loader, make_trainer


class Moved(ht.Callback):
    """Which layers changed in each epoch."""

    def __init__(self):
        self.rows = []

    def fit_start(self, trainer):
        self.before = {k: v.clone() for k, v in trainer.model.state_dict().items()}

    def epoch_end(self, trainer, row):
        now = {k: v.clone() for k, v in trainer.model.state_dict().items()}
        self.rows.append(sorted({k.split(".")[0] for k, v in now.items() if not torch.equal(v, self.before[k])}))
        self.before = now


def test_layers_move_from_their_epoch_on_and_ranks_stay_equal():
    def rank(comm):
        moved = Moved()
        trainer = make_trainer(comm, callbacks=[ht.Unfreeze({2: "0."}), moved])
        trainer.fit(make_loader(comm), epochs=4)
        ht.replica_check(trainer.model, comm)
        return moved.rows

    assert run_threads(2, rank) == [[["3"], ["3"], ["0", "3"], ["0", "3"]]] * 2


def test_resume_is_as_straight(tmp_path):
    def fit(folder, epochs):
        trainer = make_trainer(callbacks=[ht.Unfreeze({2: "0."}), ht.Checkpoint(folder)])
        trainer.fit(make_loader(trainer.comm), epochs=epochs, resume="auto")
        return trainer.model.state_dict()

    for epochs in (1, 3):
        stopped = fit(tmp_path / "a", epochs)
    fit(tmp_path / "b", 2)
    assert all(torch.equal(stopped[k], v) for k, v in fit(tmp_path / "b", 3).items())
    assert all(torch.equal(stopped[k], v) for k, v in fit(tmp_path / "c", 3).items())


def test_unknown_prefix_is_refused():
    trainer = make_trainer(callbacks=[ht.Unfreeze({1: "head"})])
    with pytest.raises(ConfigError, match="'head'"):
        trainer.fit(make_loader(trainer.comm), epochs=1)
