"""What the other files show with threads, shown with MPI and Horovod: 2 ranks, one launch an engine."""

import re

import pytest

from tests.harness import run_ranks


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("horovodrun-gloo", marks=pytest.mark.slow)])
def test_optimizer_tests_on_an_engine(launcher):
    result = run_ranks(launcher, 2, ["-m", "tests.multi.optimizer_tests"], timeout_s=150).ok()
    passed = [int(number) for number in re.findall(r"(\d+) passed", result.stdout)]
    assert len(passed) == 2 and passed[0] == passed[1] > 60
