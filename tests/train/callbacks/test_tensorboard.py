"""Curves, complete and without doubles after a resume."""

import sys

import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError, MissingPartError
from tests.fake_comm import run_threads
from tests.train.small import StopAt, make_data, make_loader, make_trainer

pytest.importorskip("tensorboard")


def curves(folder):
    """tag -> [(step, value)], as TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def count(model, data):
    return {"n": ht.Weighted(len(data[0]), 1)}


def test_curves(tmp_path):
    trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), count), ht.TensorBoard(tmp_path, every_steps=2)])
    history = trainer.fit(make_loader(trainer.comm), epochs=2)
    found = curves(tmp_path)
    assert set(found) == {"train/loss", "train/lr", "epoch/loss", "epoch/lr", "epoch/samples_per_s", "epoch/n"}
    assert [step for step, _ in found["train/loss"]] == [2, 4, 6, 8]
    assert [step for step, _ in found["epoch/loss"]] == [4, 8]
    assert [value for _, value in found["epoch/loss"]] == pytest.approx([row["loss"] for row in history])


@pytest.mark.parametrize("stop_at", [6, 7])
def test_resume_neither_doubles_nor_loses_a_point(tmp_path, stop_at):
    def make(*more):
        return make_trainer(callbacks=[ht.TensorBoard(tmp_path / "log", every_steps=1), ht.Checkpoint(tmp_path / "c", every_steps=3), *more])

    first = make(StopAt(stop_at))
    with pytest.raises(StopAt.Killed):
        first.fit(make_loader(first.comm), epochs=3)
    first.callbacks[0]._writer.flush()
    second = make()
    second.fit(make_loader(second.comm), epochs=3, resume="auto")
    found = curves(tmp_path / "log")
    assert [step for step, _ in found["train/loss"]] == list(range(1, 13))
    assert [step for step, _ in found["epoch/loss"]] == [4, 8, 12]


def test_fit_again_goes_on_writing(tmp_path):
    trainer = make_trainer(callbacks=[ht.TensorBoard(tmp_path, every_steps=1)])
    loader = make_loader(trainer.comm)
    trainer.fit(loader, steps=3)
    trainer.fit(loader, steps=6)
    assert [step for step, _ in curves(tmp_path)["train/loss"]] == [1, 2, 3, 4, 5, 6]


def test_rank_0_writes(tmp_path):
    def rank_main(comm):
        make_trainer(comm, [ht.TensorBoard(tmp_path)]).fit(make_loader(comm), epochs=1)

    run_threads(2, rank_main)
    assert len(list(tmp_path.iterdir())) == 1


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    trainer = make_trainer(callbacks=[ht.TensorBoard(tmp_path)])
    with pytest.raises(MissingPartError, match="pip install tensorboard"):
        trainer.fit(make_loader(trainer.comm), epochs=1)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_options_that_cannot_be(value):
    with pytest.raises(ConfigError, match="TensorBoard\\(every_steps="):
        ht.TensorBoard("x", every_steps=value)
