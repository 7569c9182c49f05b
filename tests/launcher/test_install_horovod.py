"""The command, run as a person runs it, on machines that lack something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STDLIB_ONLY = """
import builtins, sys
real = builtins.__import__
def only_stdlib(name, globals=None, locals=None, fromlist=(), level=0):
    top = name.split(".")[0]
    ours = top == "hvd_trainer" or top.startswith("_")  # the interpreter has private parts of its own
    if level == 0 and top not in sys.stdlib_module_names and not ours:
        raise ImportError("not allowed here: " + name)
    return real(name, globals, locals, fromlist, level)
builtins.__import__ = only_stdlib
"""


def command(*arguments, path="/usr/bin:/bin", before="", cache):
    code = f"{before}\nimport sys\nfrom hvd_trainer.launcher.install_horovod import main\nsys.exit(main(sys.argv[1:]))"
    env = {"PATH": path, "HOME": str(cache), "HVD_TRAINER_CACHE": str(cache), "LANG": "C.UTF-8"}
    env |= {name: value for name, value in os.environ.items() if name.startswith("LD_")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )


def test_dry_run_lists_every_repair_and_builds_nothing(tmp_path):
    done = command("--dry-run", cache=tmp_path)
    for name in ("gloo-stall-check", "rendezvous-restart", "binding-options", "mpich-5", "no-distutils"):
        assert f"repair {name}:" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_no_repairs_says_so(tmp_path):
    done = command("--dry-run", "--no-repairs", cache=tmp_path)
    assert "no repairs" in done.stdout and "repair gloo" not in done.stdout


def test_it_needs_the_standard_library_only(tmp_path):
    done = command("--dry-run", before=STDLIB_ONLY, cache=tmp_path)
    assert "ImportError" not in done.stderr and "Horovod 0.28.1" in done.stdout


def test_all_that_is_missing_is_said_at_once_with_its_cure(tmp_path):
    # An interpreter whose folder holds no tools, and a path without any.
    lonely = f"import sys; sys.executable = {str(tmp_path / 'bin/python')!r}"
    done = command("--rebuild", path=str(tmp_path), before=lonely, cache=tmp_path)
    assert done.returncode == 1
    for word in ("no C++ compiler", "no make", "no cmake", "no MPI compiler wrapper"):
        assert word in done.stderr
    assert "get it:" in done.stderr and "Traceback" not in done.stderr


def test_a_full_disk_is_seen_before_the_build(tmp_path):
    small = "import shutil, collections; U = collections.namedtuple('U', 'total used free'); " \
            "shutil.disk_usage = lambda path: U(9, 9, 5 << 20)"  # fmt: skip
    done = command("--rebuild", before=small, cache=tmp_path)
    assert done.returncode == 1 and "only 5 MiB free" in done.stderr and "--cache" in done.stderr


@pytest.mark.parametrize("jobs", ["0", "-1", "x"])
def test_wrong_jobs_are_refused(tmp_path, jobs):
    done = command("--jobs", jobs, cache=tmp_path)
    assert done.returncode == 2 and "--jobs" in done.stderr
