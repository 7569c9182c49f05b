"""A fault on one rank or on all: one message that names the rank, exit code not 0 in time, nothing left running."""

from __future__ import annotations

import re

import pytest

from hvd_trainer.comm.choose import module_exists
from tests.harness import Result, missing, run_ranks

WAYS = {
    "mpirun": [],  # engine mpi
    "horovodrun-gloo": [],  # engine horovod, gloo
    "horovodrun-mpi": ["engine=horovod"],  # engine horovod, mpi
    "torchrun": [],  # engine torch, gloo
}


def each_way(*quick: str):
    """A test for each launcher; those not in `quick` are left to `make test-all`, for each start takes seconds."""
    marks = {launcher: [] if launcher in quick else [pytest.mark.slow] for launcher in WAYS}
    return pytest.mark.parametrize("launcher", [pytest.param(launcher, marks=m) for launcher, m in marks.items()])


def run(launcher: str, how: str, *options: str, np: int = 2) -> Result:
    if launcher.startswith("horovodrun") and not module_exists("horovod"):
        missing("horovod", "horovod is not installed")
    return run_ranks(launcher, np, ["-m", "tests.comm.fault", how, *WAYS[launcher], *options], timeout_s=90)


def in_time(result: Result, within_s: float = 10.0) -> None:
    """From the fault to the end of the launcher; how long the start took is the machine's affair."""
    took = result.ended - float(re.search(r"fault at ([0-9.]+)", result.stdout).group(1))
    assert took <= within_s, f"{took:.1f} s after the fault\n{result}"


def messages(result: Result) -> int:
    """How many messages of ours there are, the start line aside."""
    return sum("hvd_trainer: " in line and "ranks on" not in line for line in result.text.splitlines())


@each_way("mpirun", "horovodrun-gloo")
def test_error_on_one_rank_is_told_by_that_rank(launcher: str) -> None:
    result = run(launcher, "one-crash").failed(
        "rank 1 of 2 failed at step 3: ValueError: a crash on rank 1", "in fault"
    )
    in_time(result)
    assert messages(result) == 1, str(result)


@each_way("mpirun")
def test_error_on_all_ranks_is_told_once(launcher: str) -> None:
    result = run(launcher, "all-config", np=3).failed(
        "rank 0 of 3 failed at step 3: DataError: the data set has 0 samples", "fix:     check the path"
    )
    in_time(result)
    assert messages(result) == 1, str(result)
    assert "in fault" not in result.text, "a user's mistake is shown without a traceback"


@each_way("mpirun")
def test_sys_exit_on_one_rank(launcher: str) -> None:
    result = run(launcher, "exit-7").failed("rank 1 of 2 ended at step 3 with sys.exit(7)")
    in_time(result)
    assert messages(result) == 1, str(result)
    assert result.code == 7 or launcher in ("horovodrun-gloo", "torchrun")  # which always say 1


@each_way("mpirun")
@pytest.mark.parametrize("how", ["exit-0", pytest.param("raise-exit-7", marks=pytest.mark.slow)])
def test_rank_that_leaves_early_without_a_word(launcher: str, how: str) -> None:
    result = run(launcher, how).failed()
    assert any(word in result.text.lower() for word in ("rank 0 of 2", "exited", "exit code", "exitcode")), str(result)
    in_time(result)
    assert messages(result) <= 1, str(result)


@each_way("horovodrun-gloo")
def test_killed_rank(launcher: str) -> None:
    in_time(run(launcher, "kill").failed())


@each_way()
def test_interrupted_rank(launcher: str) -> None:
    result = run(launcher, "interrupt").failed("rank 1 of 2 was interrupted (Ctrl-C) at step 3")
    in_time(result)
    assert messages(result) == 1, str(result)


@each_way("mpirun", "horovodrun-gloo")
@pytest.mark.parametrize("how", ["absent", pytest.param("stopped", marks=pytest.mark.slow)])
def test_rank_that_does_not_come(launcher: str, how: str) -> None:
    words = ("rank 0 of 2 waited 3 s in allreduce 'grad' at step 3", "fault.py", "in main")
    result = run(launcher, how, "timeout_s=3").failed(*words)
    # horovodrun --gloo gives a stopped process 10 s to end before it kills it, torchrun 30
    in_time(result, 13 if how == "absent" else 45 if launcher == "torchrun" else 25)
    assert messages(result) == 1, str(result)


@each_way("mpirun")
def test_rank_that_never_starts(launcher: str) -> None:
    words = {
        "mpirun": "wait_for_other_ranks_in_mpi_init",
        "torchrun": "rank 0 of 2 failed at start: StartError: not all ranks came to env:// within 3 s",
    }
    run(launcher, "never-starts", "timeout_s=3").failed(
        words.get(launcher, "rank 0 of 2 waited 3 s in start 'hvd.init'")
    )


@each_way("mpirun")
def test_rank_that_works_longer_than_the_others_may(launcher: str) -> None:
    result = run(launcher, "late-work", "timeout_s=2").ok()
    assert "came to the end" in result.stdout and messages(result) == 0, str(result)


@each_way()
def test_wrong_start_is_told_once(launcher: str) -> None:
    result = run(launcher, "none", "backend=ncc").failed("rank 0 of 2 failed at start", "did you mean backend='nccl'?")
    assert messages(result) == 1, str(result)


def test_lonely_ranks_are_an_error() -> None:
    """As under plain srun: two processes are announced, and the library sees one."""
    env = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    result = run_ranks("alone", 1, ["-m", "tests.comm.fault", "none"], env=env).failed(
        "StartError: 2 processes were started by mpirun (Hydra), but mpi sees 1",
        "PMI_SIZE=2",
        "libmpi",
        "srun --mpi=pmix",
    )
    assert messages(result) == 1, str(result)


def test_one_process_shows_the_message_alone() -> None:
    result = run_ranks("alone", 1, ["-m", "tests.comm.fault", "all-config"]).failed(
        "hvd_trainer: DataError: the data set has 0"
    )
    assert "Traceback" not in result.text
    run_ranks("alone", 1, ["-m", "tests.comm.fault", "all-crash"]).failed("Traceback", "ValueError")


def test_variables_win_over_arguments() -> None:
    env = {"HVD_TRAINER_ENGINE": "mpi", "HVD_TRAINER_TIMEOUT_S": "5", "HVD_TRAINER_CHECKED": "1"}
    result = run_ranks("alone", 1, ["-m", "tests.comm.fault", "none", "engine=single"], env=env).ok()
    assert (
        "engine mpi, backend mpi (started without a launcher; as asked; HVD_TRAINER_ENGINE is set)" in result.stdout
    ), str(result)
    for name, value in (("TIMEOUT_S", "-1"), ("CHECKED", "yes"), ("BACKEND", "mpl")):
        run_ranks("alone", 1, ["-m", "tests.comm.fault", "none"], env={f"HVD_TRAINER_{name}": value}).failed(
            value, "allowed"
        )


def test_user_threads_are_kept() -> None:
    result = run_ranks("alone", 1, ["-m", "tests.comm.fault", "none"], env={"OMP_NUM_THREADS": "1"}).ok()
    assert "1 CPU thread a rank (OMP_NUM_THREADS=1)" in result.stdout, str(result)
