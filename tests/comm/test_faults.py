"""A fault on one rank or on all: one message that names the rank, exit code not 0 in time, nothing left running."""

from __future__ import annotations

import re

import pytest

from tests.comm.conftest import Start
from tests.harness import Result, run_ranks

WAYS = {
    "mpirun": [],  # engine mpi
    "horovodrun-gloo": [],  # engine horovod, gloo
    "horovodrun-mpi": ["engine=horovod"],  # engine horovod, mpi
    "torchrun": [],  # engine torch, gloo
}
# Where the engine has no part in it; horovodrun-mpi starts the processes as mpirun does.
LAUNCHERS = ("mpirun", "horovodrun-gloo", "torchrun")


def each_way(how: str, *options: str, np: int = 2, quick: tuple[str, ...] = (), ways: tuple[str, ...] = tuple(WAYS)):
    """A test for each launcher; those not in `quick` are left to `make test-rest`, for each start takes seconds."""
    starts = [
        pytest.param(
            Start(launcher, np, ("-m", "tests.comm.fault", how, *WAYS[launcher], *options)),
            id=launcher,
            marks=[] if launcher in quick else pytest.mark.slow,
        )
        for launcher in ways
    ]
    return pytest.mark.parametrize("ended", starts, indirect=True)


@pytest.fixture
def launcher(request: pytest.FixtureRequest) -> str:
    """The launcher of `ended`."""
    return request.node.callspec.params["ended"].launcher


def in_time(result: Result, within_s: float = 10.0) -> None:
    """From the fault to the end of the launcher; how long the start took is the machine's affair."""
    took = result.ended - float(re.search(r"fault at ([0-9.]+)", result.stdout).group(1))
    assert took <= within_s, f"{took:.1f} s after the fault\n{result}"


def messages(result: Result) -> int:
    """How many messages of ours there are, the start line aside."""
    return sum("hvd_trainer: " in line and "ranks on" not in line for line in result.text.splitlines())


@each_way("one-crash", quick=("mpirun", "horovodrun-gloo"))
def test_error_on_one_rank_is_told_by_that_rank(ended: Result) -> None:
    ended.failed("rank 1 of 2 failed at step 3: ValueError: a crash on rank 1", "in fault")
    in_time(ended)
    assert messages(ended) == 1, str(ended)


@each_way("all-config", np=3, quick=("mpirun",), ways=LAUNCHERS)
def test_error_on_all_ranks_is_told_once(ended: Result) -> None:
    ended.failed("rank 0 of 3 failed at step 3: DataError: the data set has 0 samples", "fix:     check the path")
    in_time(ended)
    assert messages(ended) == 1, str(ended)
    assert "in fault" not in ended.text, "a user's mistake is shown without a traceback"


@each_way("exit-7", quick=("mpirun",), ways=LAUNCHERS)
def test_sys_exit_on_one_rank(ended: Result, launcher: str) -> None:
    ended.failed("rank 1 of 2 ended at step 3 with sys.exit(7)")
    in_time(ended)
    assert messages(ended) == 1, str(ended)
    assert ended.code == 7 or launcher in ("horovodrun-gloo", "torchrun")  # which always say 1


@each_way("exit-0", quick=("mpirun",))
def test_rank_that_leaves_early_without_a_word(ended: Result) -> None:
    left_early(ended)


@each_way("raise-exit-7", ways=("mpirun",))
def test_rank_that_raises_system_exit(ended: Result) -> None:
    """No call of `sys.exit`, so nothing of ours sees the 7; the launcher does, as it sees the 0 above."""
    left_early(ended)


def left_early(result: Result) -> None:
    """The launcher's words or ours, in time."""
    result.failed()
    assert any(word in result.text.lower() for word in ("rank 0 of 2", "exited", "exit code", "exitcode")), str(result)
    in_time(result)
    assert messages(result) <= 1, str(result)


@each_way("kill", quick=("horovodrun-gloo",))
def test_killed_rank(ended: Result) -> None:
    in_time(ended.failed())


@each_way("interrupt", ways=("mpirun", "horovodrun-gloo"))
def test_interrupted_rank(ended: Result) -> None:
    ended.failed("rank 1 of 2 was interrupted (Ctrl-C) at step 3")
    in_time(ended)
    assert messages(ended) == 1, str(ended)


@each_way("absent", "timeout_s=3", quick=("mpirun", "horovodrun-gloo"))
def test_rank_that_does_not_come(ended: Result) -> None:
    absent(ended, 13)


@each_way("stopped", "timeout_s=3", ways=("mpirun", "horovodrun-gloo"))
def test_rank_that_is_stopped(ended: Result) -> None:
    """It cannot even be told to end: horovodrun --gloo waits 10 s before it kills it (and torchrun 30)."""
    absent(ended, 25)


def absent(result: Result, within_s: float) -> None:
    """The message of the rank that waited, and the end of the other one."""
    result.failed("rank 0 of 2 waited 3 s in allreduce 'grad' at step 3", "fault.py", "in main")
    in_time(result, within_s)
    assert messages(result) == 1, str(result)


@each_way("never-starts", "timeout_s=3", quick=("mpirun",))
def test_rank_that_never_starts(ended: Result, launcher: str) -> None:
    words = {
        "mpirun": "wait_for_other_ranks_in_mpi_init",
        "torchrun": "rank 0 of 2 failed at start: StartError: not all ranks came to env:// within 3 s",
    }
    ended.failed(words.get(launcher, "rank 0 of 2 waited 3 s in start 'hvd.init'"))


@each_way("late-work", "timeout_s=2", quick=("mpirun",))
def test_rank_that_works_longer_than_the_others_may(ended: Result) -> None:
    assert "came to the end" in ended.ok().stdout and messages(ended) == 0, str(ended)


@each_way("none", "backend=ncc", ways=LAUNCHERS)
def test_wrong_start_is_told_once(ended: Result) -> None:
    ended.failed("rank 0 of 2 failed at start", "did you mean backend='nccl'?")
    assert messages(ended) == 1, str(ended)


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
    """And any other error as Python shows it: test_guard.py."""
    result = run_ranks("alone", 1, ["-m", "tests.comm.fault", "all-config"]).failed(
        "hvd_trainer: DataError: the data set has 0"
    )
    assert "Traceback" not in result.text


def test_variables_win_over_arguments_and_user_threads_are_kept() -> None:
    """What is refused in them: test_connect.py."""
    env = {"HVD_TRAINER_ENGINE": "mpi", "HVD_TRAINER_TIMEOUT_S": "5", "HVD_TRAINER_CHECKED": "1", "OMP_NUM_THREADS": "1"}
    result = run_ranks("alone", 1, ["-m", "tests.comm.fault", "none", "engine=single"], env=env).ok()
    reason = "started without a launcher; as asked; HVD_TRAINER_ENGINE is set"
    assert f"engine mpi, backend mpi ({reason}), 1 CPU thread a rank (OMP_NUM_THREADS=1)" in result.stdout, str(result)
