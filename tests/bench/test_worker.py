"""What a rank does, on one rank without a launcher: turns, warm-up, its answer."""

import json
import os

import pytest
import torch

import hvd_trainer.bench.worker as worker
from hvd_trainer.bench import ways
from hvd_trainer.bench.columns import BY_NAME, Column
from hvd_trainer.bench.job import Job, read_answers
from hvd_trainer.bench.workloads import Workload

MLP = Workload("mlp", "", steps=8, warmup=3)


@pytest.fixture
def alone(monkeypatch):
    """A meeting of one rank; the list has its barriers."""
    barriers = []
    meeting = ways.Meeting(0, 1, lambda: barriers.append("barrier"), lambda: barriers.append("close"), None)
    monkeypatch.setattr(ways, "meet", lambda columns: meeting)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    return barriers


def test_an_answer_has_all_samples_and_the_losses_that_are_compared(alone, tmp_path):
    columns = (BY_NAME["compute"], Column("again", "compute", "mpirun", ""))
    worker.main(Job(columns, (MLP,), 1, str(tmp_path)))
    (answer,) = read_answers(tmp_path, 1)
    found = answer["mlp"]
    assert found.keys() == {"compute", "again"}
    for column in found.values():
        assert len(column["ms"]) == 8 and min(column["ms"]) > 0
        assert len(column["losses"]) == 3 + 1 and column["num_params"] == 26_122
    assert found["compute"]["losses"] == found["again"]["losses"]
    assert alone[-2:] == ["barrier", "close"]


def test_columns_take_turns_and_each_is_once_the_first(monkeypatch):
    turns = []

    class Track:
        def __init__(self, name):
            self.name = name

        def warm_up(self, num_steps):
            turns.append((self.name, "warm", num_steps))

        def run(self, num_steps):
            turns.append((self.name, num_steps))

    worker.take_turns([Track("a"), Track("b")], MLP, 2, lambda: None)
    assert turns == [("a", "warm", 3), ("b", "warm", 3), ("a", 4), ("b", 4), ("b", 4), ("a", 4)]


def test_memory_is_sampled_where_asked_for(alone, tmp_path):
    worker.main(Job((BY_NAME["compute"],), (MLP,), 1, str(tmp_path), memory=True, blocks=1, starter=os.getppid()))
    found = json.loads((tmp_path / "rank0.json").read_text())["mlp"]["compute"]
    assert 2**20 < found["peak_pss_bytes"] <= found["peak_rss_bytes"] and found["launcher_pss_bytes"] == 0


def test_a_loop_of_its_own_is_given_whole_turns(monkeypatch):
    seen = []

    class Loop:
        def loop(self, batches, losses):
            seen.append((len(batches), losses is not None))
            if losses is not None:
                losses.extend([0.5] * len(batches))
            return [float(number) for number in range(len(batches))]

    monkeypatch.setitem(ways.BY_NAME, "loop", lambda task, column, meeting: Loop())
    track = worker.Track(Column("a", "loop", "torchrun", ""), MLP, ways.Meeting(0, 1, None, None, None))
    track.warm_up(3)
    track.run(4)
    assert track.answer() == {"ms": [1000.0] * 4, "losses": [0.5] * 4, "num_params": 26_122, "num_tensors": 6}
    assert seen == [(3, True), (worker.COLD_STEPS + 4, False), (1, True)]


def test_anybodys_way_is_found_by_module_and_function():
    assert worker.find_way("hvd_trainer.bench.ways:compute") is ways.compute is worker.find_way("compute")
