"""The command after a search: it must work as it is printed, also where the script has trained before."""

from dataclasses import replace
from pathlib import Path

import pytest

from hvd_trainer.tune import next_step
from hvd_trainer.tune.ledger import Record
from hvd_trainer.tune.trial import MET, Settings, TrialResult


def record(ranks=2, checkpoints=("runs/a",), **config):
    result = TrialResult(MET, start={"checkpoints": list(checkpoints)}, config={"config": {"lr": 0.1, "name": "", **config}})
    return Record("search", Settings(ranks, 64, 0.1), result, 0.0)


@pytest.mark.parametrize(
    ("of", "arguments", "expected"),
    [
        (record(folder="runs/a"), (), "hvd-trainer launch -np 2 train.py --config o/recommended.yaml --set folder=o/run"),
        (record(1, folder="./runs/a/"), ("--data", "x y"), "python train.py --data 'x y' --config o/recommended.yaml --set folder=o/run"),
        (record(1, folder="runs/b"), (), "python train.py --config o/recommended.yaml"),
        (record(1, checkpoints=()), (), "python train.py --config o/recommended.yaml"),
        (record(1, ("a", "b"), one="a", two="b"), (), "python train.py --config o/recommended.yaml --set one=o/run/one --set two=o/run/two"),
    ],
)
def test_command(of, arguments, expected):
    assert next_step.command("train.py", arguments, of, Path("o/recommended.yaml"), Path("o/run")) == expected


def test_a_folder_in_the_user_s_home_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert next_step.checkpoint_fields(record(checkpoints=[str(tmp_path / "a")], folder="~/a")) == ["folder"]


def test_a_folder_that_no_field_holds_is_said():
    assert next_step.about_fixed_folders(record(folder="runs/a")) == []
    said = next_step.about_fixed_folders(record(folder="runs/b"))
    assert len(said) == 1 and said[0].startswith("Its checkpoints go to runs/a, as the script says")
    old = record()
    assert next_step.about_fixed_folders(replace(old, result=replace(old.result, start={}))) == []


def test_a_folder_is_fresh_and_another_for_each_number_of_ranks(tmp_path):
    assert next_step.fresh(tmp_path / "recommended_2.yaml") == tmp_path / "run_2"
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
    assert next_step.fresh(tmp_path / "recommended.yaml") == tmp_path / "run-3"
