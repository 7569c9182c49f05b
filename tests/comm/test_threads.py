"""Ranks x threads fit the cores."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_trainer import cores
from hvd_trainer.comm.threads import apply, threads_for
from hvd_trainer.cores import cgroup_quota, first_sibling, my_cores


@pytest.mark.parametrize(
    "rank, cores, quota, expected",
    [
        (0, [{0, 1, 2, 3}], None, 4),
        (0, [{0, 1, 2, 3}] * 2, None, 2),
        (0, [{0, 1, 2, 3}] * 3, None, 1),
        (0, [{0, 1}] * 4, None, 1),  # more ranks than cores
        (1, [{0, 1}, {2, 3, 4}], None, 3),  # bound by the launcher
        (0, [{0, 1, 2, 3}, {2, 3}], None, 3),  # two of its own and two halves
        (1, [{0, 1, 2, 3}, {2, 3}], None, 1),
        (0, [set(range(64))] * 2, 8.0, 4),  # a container
        (0, [set(range(64))] * 2, 1.5, 1),
        (0, [{0, 1, 2, 3}] * 2, 100.0, 2),
    ],
)
def test_threads_for(rank: int, cores: list, quota: float | None, expected: int) -> None:
    assert threads_for(rank, cores, quota) == expected


@given(st.lists(st.sets(st.integers(0, 15), min_size=1), min_size=1, max_size=8))
def test_no_core_is_promised_twice(cores: list[set[int]]) -> None:
    counts = [threads_for(rank, cores) for rank in range(len(cores))]
    assert all(1 <= n <= len(mask) for n, mask in zip(counts, cores, strict=True))
    assert sum(counts) <= max(len(set().union(*cores)), 0) + counts.count(1)  # beyond the cores only by the least of 1


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], expected: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroup_quota(tmp_path) == expected


@pytest.mark.parametrize("text, expected", [("3,67\n", 3), ("6-7\n", 6), ("", 9)])
def test_first_sibling(tmp_path: Path, text: str, expected: int) -> None:
    folder = tmp_path / "cpu9" / "topology"
    folder.mkdir(parents=True)
    (folder / "thread_siblings_list").write_text(text)
    assert first_sibling(9, tmp_path) == expected
    assert first_sibling(5, tmp_path) == 5


def test_my_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert my_cores() and my_cores() == sorted(set(my_cores()))
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(cores, "first_sibling", lambda cpu: cpu // 2 * 2)
    assert my_cores() == [0, 2]


def test_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    try:
        assert apply(1, {}) == "1 CPU thread a rank" and torch.get_num_threads() == 1
        assert apply(2, {}) == "2 CPU threads a rank"
        assert apply(1, {"OMP_NUM_THREADS": "2"}) == "2 CPU threads a rank (OMP_NUM_THREADS=2)"
    finally:
        torch.set_num_threads(before)
