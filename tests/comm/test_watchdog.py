"""The watchdog ends what hangs, and only that."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from hvd_trainer.comm import watchdog
from hvd_trainer.comm.watchdog import Watchdog, main_thread_line
from hvd_trainer.errors import CollectiveTimeout


def start(timeout_s: float, **more):
    errors, done = [], threading.Event()
    watch = Watchdog(
        timeout_s, lambda: ("rank 1 of 4", "step 17"), lambda error: (errors.append(error), done.set()), **more
    )
    watch.start()
    watch.start()
    return watch, errors, done


def test_a_call_that_hangs() -> None:
    watch, errors, _ = start(0.2)
    begin = time.monotonic()
    watch.enter("allreduce", "grad.3")
    while not errors and time.monotonic() - begin < 5:
        pass  # the line that the message shall name
    assert time.monotonic() - begin >= 0.2
    assert isinstance(errors[0], CollectiveTimeout)
    for word in (
        "rank 1 of 4 waited 0.2 s in allreduce 'grad.3' at step 17",
        "test_watchdog.py",
        "test_a_call_that_hangs",
        "timeout_s",
    ):
        assert word in str(errors[0])


def test_many_short_calls_are_left_alone() -> None:
    """Together they take longer than the limit; each takes a hundredth of it, so that a busy machine deceives nobody."""
    watch, errors, _ = start(1.0)
    for _ in range(120):
        watch.enter("allreduce", "grad")  # the same name each time
        time.sleep(0.01)
        watch.leave()
    time.sleep(0.3)
    watch.stop()
    assert errors == []


def test_a_rank_that_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "ASK_AFTER_S", 0.1)
    monkeypatch.setattr(watchdog, "AFTER_LEAVING_S", 0.3)
    watch, errors, done = start(2.0, ended=lambda: "rank 0")
    watch.enter("barrier", "end")
    assert done.wait(1.9)
    assert "rank 1 of 4 waits in barrier 'end' at step 17" in str(errors[0]) and "rank 0 has ended its program" in str(
        errors[0]
    )
    assert not isinstance(errors[0], CollectiveTimeout)


def test_entering_costs_next_to_nothing() -> None:
    """No lock is taken, no clock read and no thread woken: the two methods call nothing at all."""
    watch, _, _ = start(60.0)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, called: calls.append(frame.f_code.co_name if event == "call" else getattr(called, "__name__", "")))
    watch.enter("allreduce", "grad")
    watch.leave()
    sys.setprofile(None)
    watch.stop()
    assert [name for name in calls if name] == ["enter", "leave", "setprofile"]


def test_main_thread_line() -> None:
    assert "test_main_thread_line" in main_thread_line()
