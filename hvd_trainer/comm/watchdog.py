"""Ends the job when a blocking collective, which Python cannot interrupt, is not answered in time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from hvd_trainer.errors import CollectiveError, CollectiveTimeout

OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

ASK_AFTER_S = 1.0
AFTER_LEAVING_S = 4.0  # what a rank sent before it left may still be on its way


class Watchdog:
    """A daemon thread that looks, a few times per limit, whether the current collective has taken too long.

    `enter` and `leave` store one tuple (about 0.2 us); the clock is read by the thread, so a collective ends between
    `timeout_s` and `timeout_s` plus one period after it began.

    Args:
        timeout_s: seconds, > 0.
        describe: gives "rank 1 of 4" and what the job is doing ("step 17").
        expired: called once, from the thread, with the error; it must end the process.
        ended: gives the name of a rank that has left the job, "" if none is known to; asked while a collective hangs. A
            collective that such a rank does not answer is given up after `AFTER_LEAVING_S` seconds.
    """

    def __init__(
        self,
        timeout_s: float,
        describe: Callable[[], tuple[str, str]],
        expired: Callable[[CollectiveError], None],
        ended: Callable[[], str] = lambda: "",
    ) -> None:
        self.timeout_s = timeout_s
        self._describe, self._expired, self._ended = describe, expired, ended
        self.now: tuple[str, str] | None = None  # set by `enter` and `leave`; by callers in a hurry, too
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="hvd_trainer-watchdog", daemon=True)
            self._thread.start()

    def enter(self, kind: str, name: str) -> None:
        """A blocking call begins."""
        self.now = (kind, name)

    def leave(self) -> None:
        """It returned."""
        self.now = None

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def _watch(self) -> None:
        period = min(1.0, self.timeout_s / 10)
        seen, since = None, 0.0
        while not self._stop.wait(period):
            now = self.now
            if now is None or now is not seen:  # every call stores a new tuple, so identity tells two calls apart
                seen, since, left_since = now, time.monotonic(), None
                continue
            waited = time.monotonic() - since
            if waited > self.timeout_s:
                self._expired(timeout_error(now[0], now[1], self.timeout_s, *self._describe()))
                return
            if waited > ASK_AFTER_S and left_since is None and self._ended():
                left_since = time.monotonic()
            if left_since is not None and time.monotonic() - left_since > AFTER_LEAVING_S:
                self._expired(left_error(now[0], now[1], self._ended(), *self._describe()))
                return


def left_error(kind: str, name: str, left: str, who: str, where: str) -> CollectiveError:
    """The error for a collective that waits for a rank whose program has ended."""
    return CollectiveError(
        f"{who} waits in {kind} {name!r} at {where} (called from {main_thread_line()}), "
        f"but {left} has ended its program",
        fix="let all ranks make the same steps and collectives; look for an early exit() or return on that rank",
    )


def timeout_error(kind: str, name: str, timeout_s: float, who: str, where: str) -> CollectiveTimeout:
    """The error for a collective that not all ranks came to.

    Args:
        kind: "allreduce", "barrier", ...
        name: the tensor's or call's name.
        timeout_s: the limit in seconds.
        who: "rank 1 of 4".
        where: "step 17".
    """
    return CollectiveTimeout(
        f"{who} waited {timeout_s:g} s in {kind} {name!r} at {where} (called from {main_thread_line()}): "
        "not all ranks came",
        fix="look for the rank that stopped, is slower, or took another way (`if rank == 0:` around a collective); "
        "HVD_TRAINER_CHECKED=1 compares the calls of all ranks; a longer wait: ht.init(timeout_s=...)",
    )


def main_thread_line() -> str:
    """`file:line in function` where the main thread is, the innermost that is not of this package."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    inner = frame
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(OWN_FOLDER):
        frame = frame.f_back
    frame = frame or inner
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
