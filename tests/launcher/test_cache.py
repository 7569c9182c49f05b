"""The key changes with everything that a wheel depends on, and with nothing else."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_trainer.launcher.horovod_build import cache
from hvd_trainer.launcher.horovod_build.cuda import Cuda
from hvd_trainer.launcher.horovod_build.repairs import REPAIRS
from hvd_trainer.launcher.horovod_build.settings import Settings
from tests.launcher.sample import FACTS

ROOT = Path(__file__).resolve().parents[2]


def key(facts=FACTS, repairs=REPAIRS, movable=True, **settings):
    given = Settings(cache=None, path="", **settings)
    return cache.key(cache.inputs(facts, given, repairs, movable))


@pytest.mark.parametrize(
    "change",
    [
        {"torch": "2.14.0+cpu"},
        {"python": "cp312"},
        {"machine": "aarch64-glibc2.36"},
        {"mpi": "MPICH 5.0.2"},
        {"mpicxx": "/other/bin/mpicxx"},
        {"cxx_version": "c++ 13.1.0"},
        {"standard": 20},
        {"cuda": Cuda(True, "/cuda", "13.0", "", "")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_fact_is_another_key(change):
    assert key(dataclasses.replace(FACTS, **change)) != key()


def test_other_repairs_and_engines_are_another_key():
    changed = (dataclasses.replace(REPAIRS[0], replacement="other"), *REPAIRS[1:])
    keys = [key(), key(repairs=()), key(repairs=changed), key(with_mpi=False), key(with_gloo=False)]
    assert len(set(keys)) == len(keys)


def test_a_wheel_that_cannot_move_is_bound_to_its_environment(monkeypatch):
    movable, bound = key(), key(movable=False)
    monkeypatch.setattr("sys.prefix", "/another/environment")
    assert key() == movable
    assert key(movable=False) != bound


def test_what_does_not_change_the_wheel_does_not_change_the_key():
    assert key(jobs=7, base_env={"A": "1"}) == key()
    assert key(dataclasses.replace(FACTS, cmake="/other/cmake", make="/other/make")) == key()


def test_keep_find_drop(tmp_path):
    wheel = tmp_path / "horovod-0.28.1-cp311.whl"
    wheel.write_bytes(b"zip")
    assert cache.find(tmp_path / "c", "k") is None
    kept = cache.keep(tmp_path / "c", "k", wheel)
    assert cache.find(tmp_path / "c", "k") == kept and kept.read_bytes() == b"zip"
    cache.drop(tmp_path / "c", "k")
    assert cache.find(tmp_path / "c", "k") is None


def test_what_a_killed_build_left_is_removed(tmp_path):
    (tmp_path / "build-old" / "deep").mkdir(parents=True)
    with cache.lock(tmp_path), cache.scratch(tmp_path) as work:
        assert work.is_dir() and not (tmp_path / "build-old").exists()
    assert not work.exists()


def test_a_second_build_waits_and_says_so(tmp_path):
    code = """if True:
        import sys
        from pathlib import Path
        from hvd_trainer.launcher.horovod_build import cache
        with cache.lock(Path(sys.argv[1])):
            print("in", flush=True)
    """
    with cache.lock(tmp_path):
        second = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        assert "waiting for it" in second.stdout.readline()
    assert second.communicate(timeout=30)[0] == "in\n"
