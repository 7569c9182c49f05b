"""Lines for scripts: every one valid, none twice after a resume."""

import json

import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads
from tests.train.small import StopAt, make_loader, make_trainer


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_epochs_only(tmp_path):
    path = tmp_path / "deep" / "log.jsonl"
    trainer = make_trainer(callbacks=[ht.JsonLines(path)])
    history = trainer.fit(make_loader(trainer.comm), epochs=2)
    assert lines(path) == [{"kind": "epoch", **row} for row in history]


def test_steps_too(tmp_path):
    path = tmp_path / "log.jsonl"
    trainer = make_trainer(callbacks=[ht.JsonLines(path, every_steps=2)])
    trainer.fit(make_loader(trainer.comm), epochs=2)
    assert [(line["kind"], line["step"]) for line in lines(path)] == [
        ("step", 2), ("step", 4), ("epoch", 4), ("step", 6), ("step", 8), ("epoch", 8),
    ]  # fmt: skip
    assert set(lines(path)[0]) == {"kind", "step", "loss", "lr", "samples"}


@pytest.mark.parametrize("torn", ["", '{"kind": "step", "st', "\n", "null\n", "[1]\n"])
def test_resume_takes_no_line_twice(tmp_path, torn):
    """Killed after step 7 with a checkpoint of step 6: the line of step 7 goes, a line torn by the kill too."""
    straight = make_trainer(callbacks=[ht.JsonLines(tmp_path / "straight.jsonl", every_steps=1)])
    straight.fit(make_loader(straight.comm), epochs=3)
    path = tmp_path / "log.jsonl"
    first = make_trainer(callbacks=[ht.JsonLines(path, every_steps=1), ht.Checkpoint(tmp_path / "c", every_steps=3), StopAt(7)])
    with pytest.raises(StopAt.Killed):
        first.fit(make_loader(first.comm), epochs=3)
    path.write_text(path.read_text() + torn)
    second = make_trainer(callbacks=[ht.JsonLines(path, every_steps=1), ht.Checkpoint(tmp_path / "c")])
    second.fit(make_loader(second.comm), epochs=3, resume="auto")
    without_time = [[{k: v for k, v in line.items() if k != "samples_per_s"} for line in lines(p)] for p in (path, tmp_path / "straight.jsonl")]
    assert without_time[0] == without_time[1]


def test_a_fresh_start_empties_the_file(tmp_path):
    for _ in range(2):
        trainer = make_trainer(callbacks=[ht.JsonLines(tmp_path / "log.jsonl")])
        trainer.fit(make_loader(trainer.comm), epochs=1)
    assert len(lines(tmp_path / "log.jsonl")) == 1


def test_a_metric_that_is_nan_is_valid_json(tmp_path):
    """NaN is no JSON: browsers and jq refuse the line."""

    class Column(ht.Callback):
        def epoch_end(self, trainer, row):
            row.update(nothing=float("nan"), much=float("inf"))

    trainer = make_trainer(callbacks=[Column(), ht.JsonLines(tmp_path / "log.jsonl")])
    trainer.fit(make_loader(trainer.comm), epochs=1)

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    line = json.loads((tmp_path / "log.jsonl").read_text(), parse_constant=refuse)
    assert line["nothing"] is None and line["much"] is None


def test_one_file_for_all_ranks(tmp_path):
    def rank_main(comm):
        make_trainer(comm, [ht.JsonLines(tmp_path / "log.jsonl", every_steps=1)]).fit(make_loader(comm), epochs=1)

    run_threads(3, rank_main)
    assert len(lines(tmp_path / "log.jsonl")) == 5


@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_options_that_cannot_be(value):
    with pytest.raises(ConfigError, match="JsonLines\\(every_steps="):
        ht.JsonLines("x", every_steps=value)
