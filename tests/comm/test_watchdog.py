"""The watchdog ends what hangs, and only that."""

from __future__ import annotations

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
    assert 0.2 <= time.monotonic() - begin < 2
    assert isinstance(errors[0], CollectiveTimeout)
    for word in (
        "rank 1 of 4 waited 0.2 s in allreduce 'grad.3' at step 17",
        "test_watchdog.py",
        "test_a_call_that_hangs",
        "timeout_s",
    ):
        assert word in str(errors[0])


def test_many_short_calls_are_left_alone() -> None:
    watch, errors, _ = start(0.2)
    for _ in range(60):
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
    watch, _, _ = start(60.0)
    begin = time.perf_counter()
    for _ in range(10_000):
        watch.enter("allreduce", "grad")
        watch.leave()
    watch.stop()
    assert (time.perf_counter() - begin) / 10_000 < 5e-6


def test_main_thread_line() -> None:
    assert "test_main_thread_line" in main_thread_line()
