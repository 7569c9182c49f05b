"""The guard's rules, without ranks; `test_faults.py` tries them with ranks."""

from __future__ import annotations

import sys

import pytest

from hvd_trainer.comm import guard
from hvd_trainer.comm.api import Topology
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import CollectiveError, CollectiveTimeout, DataError, HvdTrainerError


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def hooks_as_before():
    before = sys.excepthook, sys.exit
    yield
    guard.uninstall()
    sys.excepthook, sys.exit = before


def two_ranks(rank: int = 1) -> SingleCommunicator:
    comm = SingleCommunicator()
    comm.topology = Topology(rank=rank, size=2)
    comm.where = "step 4"
    return comm


def test_grace() -> None:
    graces = [guard.grace(ValueError(), rank) for rank in range(200)]
    assert graces[0] == 0 < graces[1] < graces[2] and max(graces) < 3
    assert guard.grace(guard.OtherRankEnded("x"), 0) > max(graces)
    assert guard.grace(guard.OtherRankEnded("x"), 5) < guard.HARD_EXIT_S


@pytest.mark.parametrize(
    "error, start, traceback",
    [
        (
            DataError("no samples", "some", "look"),
            "rank 1 of 2 failed at step 4: DataError: no samples\n  allowed: some",
            False,
        ),
        (CollectiveTimeout("rank 1 of 2 waited"), "CollectiveTimeout: rank 1 of 2 waited", False),
        (CollectiveError("the ranks differ"), "rank 1 of 2 failed at step 4: CollectiveError: the ranks differ", False),
        (ValueError("bad"), "rank 1 of 2 failed at step 4: ValueError: bad\n", True),
        (SystemExit("no"), "rank 1 of 2 ended at step 4 with sys.exit('no')", False),
        (KeyboardInterrupt(), "rank 1 of 2 was interrupted (Ctrl-C) at step 4", False),
    ],
)
def test_describe(error: BaseException, start: str, traceback: bool) -> None:
    try:
        raise error
    except BaseException as caught:
        text = guard.describe(caught, 1, 2, "step 4")
    assert text.startswith(f"hvd_trainer: {start}") and ("test_describe" in text) == traceback


def test_several_ranks_print_and_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    comm, codes = two_ranks(), []
    monkeypatch.setattr(guard.time, "sleep", lambda seconds: codes.append(seconds))
    monkeypatch.setattr(guard, "exit_soon", lambda code: None)

    def exit_now(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(guard, "exit_now", exit_now)
    guard.install(comm)
    with pytest.raises(Ended):
        sys.excepthook(ValueError, ValueError("bad"), None)
    assert codes[:2] == [1.0, 1] and "rank 1 of 2 failed at step 4: ValueError: bad" in capsys.readouterr().err
    codes.clear()
    with pytest.raises(SystemExit):
        sys.exit(7)
    with pytest.raises(Ended):
        guard.at_exit(comm)
    assert codes[1] == 7 and "sys.exit(7)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        sys.exit(0)
    guard.at_exit(comm)
    assert comm.closed
    with pytest.raises(SystemExit):
        guard.fail_job(SystemExit(0), two_ranks())


def test_hooks_are_put_back_but_not_over_those_of_others() -> None:
    before = sys.excepthook, sys.exit
    guard.install(two_ranks())
    assert sys.excepthook is not before[0] and sys.exit is not before[1]
    guard.install(None)  # takes the first ones off, does not pile up
    guard.uninstall()
    assert (sys.excepthook, sys.exit) == before
    guard.install(None)
    assert sys.exit is before[1], "one process needs no hook there"
    sys.excepthook = theirs = lambda *args: None
    guard.uninstall()
    assert sys.excepthook is theirs


def test_one_process(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: shown.append(args))
    comm = SingleCommunicator()
    for error in (DataError("no samples"), ValueError("bad"), SystemExit(3), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            guard.fail_job(error, comm)
    assert comm.closed
    sys.excepthook(DataError, DataError("no samples"), None)
    assert capsys.readouterr().err == "hvd_trainer: DataError: no samples\n" and not shown
    sys.excepthook(ValueError, ValueError("bad"), None)
    assert len(shown) == 1


def test_rank_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert guard.who() == "rank 2 of 3" and guard.place(SingleCommunicator()) == (2, 3)
    assert guard.who(two_ranks()) == "rank 1 of 2"
    assert issubclass(guard.OtherRankEnded, HvdTrainerError)
