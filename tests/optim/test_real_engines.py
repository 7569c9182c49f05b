"""What the other files show with threads, shown with MPI and Horovod: 2 ranks, one launch an engine; 4 on pretended nodes."""

import re

import pytest

from tests.harness import run_ranks
from tests.rank_start import NO_COMPILER


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("horovodrun-gloo", marks=pytest.mark.slow)])
def test_optimizer_tests_on_an_engine(launcher):
    result = run_ranks(launcher, 2, ["-m", "tests.multi.optimizer_tests"], timeout_s=150).ok()
    passed = [int(number) for number in re.findall(r"(\d+) passed", result.stdout)]
    assert len(passed) == 2 and passed[0] == passed[1] > 60


@pytest.mark.slow
def test_two_nodes_of_two_ranks():
    result = run_ranks("mpirun", 4, ["-m", "tests.multi.nodes", "pretend=2"], timeout_s=120, env=NO_COMPILER).ok()
    assert "same bits on 4 ranks: gradients in 1 bucket through shared memory of each node and messages between them" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("how", "words"), [("exit-0", "waits in gradient sum 'the gradients' at step 4"), ("kill", "rank 3")])
def test_a_rank_of_another_node_that_ends_ends_the_job(how, words):
    """Who shares memory with it sees it at once; those that wait for a message would be told by the watchdog."""
    result = run_ranks("mpirun", 4, ["-m", "tests.multi.nodes", "pretend=2", how], timeout_s=120, env=NO_COMPILER)
    result.failed(words)
    assert result.ended - float(re.search(r"fault at ([0-9.]+)", result.stdout).group(1)) < 10, str(result)
