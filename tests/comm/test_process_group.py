"""Engine torch in a process of its own: what it starts ends with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT, environment

PROGRAM = """
import pathlib, torch
import hvd_trainer as ht

def gloo_threads():
    return sum("gloo" in file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm"))

comm = ht.init(engine="torch", backend="gloo")
comm.allreduce_(torch.ones(10), "a").wait()
comm.allreduce_(torch.ones(10, dtype=torch.bfloat16), "b").wait()
before = gloo_threads()
comm.close()
print(before, gloo_threads())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_no_thread_is_left_that_could_need_python_when_it_has_ended():
    """Seen once, in about the fiftieth launch of benchmarks/predict_hosts.py: the last collective's tensors let go of by Gloo's thread while the interpreter ended, exit code 134."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split()[-2:])
    assert before > 0 and after == 0
