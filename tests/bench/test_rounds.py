"""The rounds, with a starter that starts nothing."""

from dataclasses import replace

import pytest

from hvd_trainer.bench import workloads
from hvd_trainer.bench.columns import BY_NAME
from hvd_trainer.bench.rounds import Plan, measure
from hvd_trainer.errors import StartError
from tests.bench.answers import Pretend

COLUMNS = tuple(BY_NAME[name] for name in ("compute", "ours-mpi", "hvd-best", "ddp-gloo"))
WORK = tuple(workloads.choose(("mlp", "wide"), steps=8))
MS = {"compute": 1.0, "ours-mpi": 2.0, "hvd-best": 3.0, "ddp-gloo": 4.0, "ddp-gloo-mpirun": 4.0}


def plan(num_rounds=2, memory=False, required=frozenset()):
    return Plan(COLUMNS, WORK, 2, 1, num_rounds, memory, required=required)


def test_every_launch_once_a_round_beginning_with_another():
    start, said = Pretend(MS), []
    found = measure(plan(), start, said.append)
    assert [names for _, names, _, _ in start.started] == [
        ["compute", "ours-mpi"], ["hvd-best"], ["ddp-gloo"],
        ["hvd-best"], ["ddp-gloo"], ["compute", "ours-mpi"],
    ]  # fmt: skip
    assert [line for line, *_ in start.started[:3]] == ["mpirun", "mpirun-best", "torchrun"]
    assert len(found.times["wide"]["ddp-gloo"]) == 2 and len(found.times["wide"]["ddp-gloo"][0]) == 2
    assert said[0].startswith("# 6 launches: 3 in each of 2 rounds;") and said[1] == "round 1 of 2: compute+ours-mpi" and found.said["compute"] == "hvd_trainer: 2 ranks"


@pytest.mark.parametrize(
    ("memory", "broken", "expected"),
    [
        (False, [], ["# 6 launches left, about 1m00s", "# 3 launches left, about 30 s"]),
        (True, [], ["# 14 launches left, at most about 2m20s", "# 11 launches left, at most about 1m50s", "# 8 launches left, at most about 1m20s"]),
        (False, ["hvd-best"], ["# 4 launches left, about 1m00s", "# 2 launches left, about 25 s"]),
    ],
)
def test_after_each_round_it_is_said_how_long_the_rest_takes(monkeypatch, memory, broken, expected):
    """Each launch takes 10 s."""
    start, said = Pretend(MS, broken=broken), []
    monkeypatch.setattr("hvd_trainer.bench.rounds.time.monotonic", lambda: 10.0 * len(start.started))
    measure(plan(3, memory), start, said.append)
    assert [line for line in said if "left, " in line] == expected


def test_memory_has_a_process_for_each_column_and_workload():
    start = Pretend(MS)
    found = measure(plan(1, memory=True), start, lambda text: None)
    alone = [(names, work) for _, names, work, memory in start.started if memory]
    assert alone == [([column.name], [work.name]) for column in COLUMNS for work in WORK]
    assert found.memory["mlp"]["hvd-best"][1] == {"peak_pss_bytes": 2 * 2**20, "peak_rss_bytes": 2**30, "launcher_pss_bytes": 11 * 2**20}


def test_columns_for_memory_are_in_its_round_alone():
    start, more = Pretend(MS), BY_NAME["ddp-gloo-mpirun"]
    found = measure(replace(plan(1, memory=True), columns=COLUMNS[:1], for_memory=(more,)), start, lambda text: None)
    assert [(names, memory) for _, names, _, memory in start.started if more.name in names] == [([more.name], True)] * len(WORK)
    assert more.name in found.memory["mlp"] and more.name not in found.times["mlp"]


def test_what_fails_is_left_out_and_not_tried_again():
    start, said = Pretend(MS, broken=["hvd-best"]), []
    found = measure(plan(3), start, said.append)
    assert sum("hvd-best" in names for _, names, _, _ in start.started) == 1
    assert "hvd-best" not in found.times["mlp"] and "ValueError: broken" in found.failed["hvd-best"]
    assert any("left out" in text for text in said)


def test_what_fails_later_goes_as_a_whole():
    start = Pretend(MS)

    def breaks_in_the_second_round(line, command):
        if len(start.started) >= 3:
            start.broken = ["hvd-best"]
        return start(line, command)

    found = measure(plan(2), breaks_in_the_second_round, lambda text: None)
    assert "hvd-best" not in found.times["mlp"] and len(found.times["mlp"]["ours-mpi"]) == 2


def test_a_required_column_that_fails_ends_it():
    with pytest.raises(StartError, match="(?s)hvd-best ended with exit code 3.*ValueError: broken"):
        measure(plan(required=frozenset(["hvd-best"])), Pretend(MS, broken=["hvd-best"]), lambda text: None)
