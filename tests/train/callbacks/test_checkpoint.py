"""When checkpoints are written, and that a failed write is an error on every rank."""

import os
import shutil

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.checkpoint.store import load
from hvd_trainer.errors import CheckpointError, ConfigError
from tests.fake_comm import run_threads
from tests.train.small import Watch, make_loader, make_trainer, parameters


def steps_in(folder):
    return [int(path.name[5:]) for path in sorted(folder.iterdir()) if path.name.startswith("step-")]


@pytest.mark.parametrize(
    ("options", "length", "expected"),
    [
        ({}, {"epochs": 3}, [4, 8, 12]),
        ({}, {"steps": 6}, [4, 6]),
        ({"every_epochs": 2}, {"epochs": 5}, [8, 16, 20]),
        ({"every_steps": 3}, {"epochs": 2}, [3, 4, 6, 8]),
        ({"every_steps": 4, "every_epochs": 5}, {"epochs": 3}, [4, 8, 12]),
        ({"every_steps": 100}, {"epochs": 1}, [4]),
    ],
    ids=repr,
)
def test_when(options, length, expected, tmp_path):
    trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path, keep=99, **options)])
    trainer.fit(make_loader(trainer.comm), **length)
    assert steps_in(tmp_path) == expected


def test_keep(tmp_path):
    trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path, keep=2, every_steps=1)])
    trainer.fit(make_loader(trainer.comm), epochs=2)
    assert steps_in(tmp_path) == [7, 8]


def test_the_rows_columns_are_in_the_checkpoint_whatever_the_order(tmp_path):
    class Column(ht.Callback):
        def epoch_end(self, trainer, row):
            row["mine"] = 1.0

    trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path), Column()])
    trainer.fit(make_loader(trainer.comm), epochs=1)
    assert load(tmp_path)[0]["history"][0]["mine"] == 1.0


def test_two_folders(tmp_path):
    callbacks = [ht.Checkpoint(tmp_path / "often", every_steps=1, keep=1), ht.Checkpoint(tmp_path / "seldom", every_epochs=2)]
    trainer = make_trainer(callbacks=callbacks)
    trainer.fit(make_loader(trainer.comm), epochs=2)
    assert steps_in(tmp_path / "often") == steps_in(tmp_path / "seldom") == [8]


def test_a_fresh_start_sets_the_older_run_aside(tmp_path, capsys):
    long = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
    long.fit(make_loader(long.comm), epochs=4)
    fresh = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
    fresh.fit(make_loader(fresh.comm), epochs=1)
    assert steps_in(tmp_path) == [4]
    assert steps_in(tmp_path / "previous-1") == [8, 12, 16]
    assert "moved to" in capsys.readouterr().out
    again = make_trainer(callbacks=[ht.Checkpoint(tmp_path)])
    again.fit(make_loader(again.comm), epochs=1, resume="auto")
    assert torch.equal(parameters(again), parameters(fresh))


def test_the_last_line_says_where_the_run_is_saved(tmp_path, capsys):
    for epochs, said in ((2, [f"saved {tmp_path}/step-0000000008"]), (2, [])):  # the second start has nothing left to do
        trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path, every_steps=3)])
        trainer.fit(make_loader(trainer.comm), epochs=epochs, resume="auto")
        assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("saved")] == said


def test_one_folder_for_all_ranks_and_states_of_each(tmp_path):
    def rank_main(comm):
        trainer = make_trainer(comm, [ht.Checkpoint(tmp_path)])
        trainer.fit(make_loader(comm), epochs=1)

    run_threads(3, rank_main)
    assert steps_in(tmp_path) == [4]
    assert len(load(tmp_path)[0]["rng"]) == 3


def test_a_folder_that_cannot_be_written_is_an_error_on_every_rank_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")

    def rank_main(comm):
        trainer = make_trainer(comm, [ht.Checkpoint(tmp_path / "file")])
        with pytest.raises(CheckpointError, match="cannot be written"):
            trainer.fit(make_loader(comm), epochs=1)
        assert trainer.step == 0

    run_threads(2, rank_main)


def test_a_failed_write_is_an_error_on_every_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))

    def rank_main(comm):
        with pytest.raises(CheckpointError, match="the checkpoint of step 4 cannot be written"):
            make_trainer(comm, [ht.Checkpoint(tmp_path)]).fit(make_loader(comm), epochs=1)

    run_threads(2, rank_main)


@pytest.mark.parametrize("option", ["every_epochs", "every_steps", "keep"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_options_that_cannot_be(option, value):
    with pytest.raises(ConfigError, match=f"Checkpoint\\({option}="):
        ht.Checkpoint("x", **{option: value})


def test_auto_takes_the_newest_of_several_folders(tmp_path):
    """One every few steps on a fast disk, one an epoch to keep."""

    def fit(steps, callbacks):
        trainer = make_trainer(callbacks=[*callbacks, watch := Watch()])
        trainer.fit(make_loader(trainer.comm), steps=steps, resume="auto")
        return watch.reports[0].step

    rare, often = tmp_path / "rare", tmp_path / "often"
    fit(4, [ht.Checkpoint(rare)])
    fit(6, [ht.Checkpoint(rare, every_epochs=9), ht.Checkpoint(often)])
    shutil.rmtree(rare / "step-0000000006")
    assert fit(8, [ht.Checkpoint(rare), ht.Checkpoint(often)]) == 7


def test_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for steps, resume in ((2, None), (3, "auto"), (4, "~/runs/a")):
        trainer = make_trainer(callbacks=[ht.Checkpoint("~/runs/a"), ht.JsonLines("~/log")])
        trainer.fit(make_loader(trainer.comm), steps=steps, resume=resume)
    assert (tmp_path / "runs/a/step-0000000004").is_dir() and (tmp_path / "log").is_file()
