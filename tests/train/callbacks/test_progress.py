"""What rank 0 shows: plain lines without a terminal or with several ranks, a bar for one process at one."""

import re
import sys

import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from hvd_trainer.train.callbacks.progress import _clock
from tests.fake_comm import run_threads
from tests.train.small import make_data, make_loader, make_trainer


def test_a_line_an_epoch(capsys):
    metrics = {"size": lambda model, data: ht.Weighted(len(data[0]), 1)}
    trainer = make_trainer(callbacks=[ht.Evaluate(make_data(5), metrics), ht.Progress()])
    trainer.fit(make_loader(trainer.comm), epochs=2)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(lines) == 2
    wanted = r"epoch 1  step 4/8  loss \S+  lr 0\.2  [\d,]+ samples/s  size 5  \d+:\d\d left"
    assert re.fullmatch(wanted, lines[0]), lines[0]
    assert lines[1].endswith("size 5  done in 0:00")  # "0:00 left" told nobody how long it took


@pytest.mark.parametrize(("time_s", "text"), [(0.4, "0:00"), (59.6, "1:00"), (61, "1:01"), (3599, "59:59"), (3600, "1:00:00"), (90061, "25:01:01")])
def test_clock(time_s, text):
    assert _clock(time_s) == text


def test_lines_within_long_epochs(capsys):
    trainer = make_trainer(callbacks=[ht.Progress(every_s=0.0)])
    trainer.fit(make_loader(trainer.comm), epochs=1)
    steps = re.findall(r"^epoch 1  step (\d)/4  loss", capsys.readouterr().out, re.MULTILINE)
    assert steps == ["1", "2", "3", "4", "4"]  # the last line is the epoch's


def test_no_line_before_it_is_due(capsys):
    trainer = make_trainer(callbacks=[ht.Progress(every_s=1000.0)])
    trainer.fit(make_loader(trainer.comm), epochs=3)
    assert len(re.findall(r"^epoch", capsys.readouterr().out, re.MULTILINE)) == 3


def test_rank_0_speaks_for_all(capsys):
    def rank_main(comm):
        make_trainer(comm, [ht.Progress(every_s=0.0)]).fit(make_loader(comm), epochs=1)

    run_threads(3, rank_main)
    assert len(re.findall(r"^epoch", capsys.readouterr().out, re.MULTILINE)) == 5


def test_bar_at_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    progress = ht.Progress()
    trainer = make_trainer(callbacks=[progress])
    trainer.fit(make_loader(trainer.comm), epochs=2)
    assert progress._bar is None  # stopped: the cursor is back
    assert "step 8/8" in capsys.readouterr().out


def test_bar_is_stopped_by_an_error(monkeypatch, capsys):
    """A bar left running would hide the cursor and paint over the message."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)

    class Broken(ht.Callback):
        def step_end(self, trainer, report):
            raise ValueError("mine")

    progress = ht.Progress()
    trainer = make_trainer(callbacks=[progress, Broken()])
    with pytest.raises(ValueError, match="mine"):
        trainer.fit(make_loader(trainer.comm), epochs=1)
    assert progress._bar is None


@pytest.mark.parametrize("value", [-1, float("nan"), "2", True])
def test_options_that_cannot_be(value):
    with pytest.raises(ConfigError, match="Progress\\(every_s="):
        ht.Progress(every_s=value)
