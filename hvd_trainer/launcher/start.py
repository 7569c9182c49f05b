"""The one file of `launch` that starts processes: runs a command line, passes its output, signals and exit code on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO, Any

from hvd_trainer.launcher.start_line import StartLine

ASK_S = 20.0
KILL_AFTER_S = 12.0  # after a signal: the ranks end within 10 s of a fault, and horovodrun takes its time
DRAIN_S = 2.0  # for the last lines, once the launcher has ended
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def output(*command: str) -> str:
    """What a program prints, on both streams; "" where it cannot be run or does not end in 20 s."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def run(line: StartLine, env: Mapping[str, str], relabel: Callable[[str], str], out: IO[str], err: IO[str]) -> int:
    """Run a launcher to its end.

    It gets a process group of its own, so that a signal to us reaches the launcher and whatever it put between itself
    and the ranks (horovodrun starts a shell), once. What has not ended `KILL_AFTER_S` seconds later is killed.

    Args:
        line: what to run.
        env: the environment to which the line's own variables are added.
        relabel: applied to each line of output.
        out, err: where the lines go.

    Returns:
        The launcher's exit code; 128 + N where signal N ended it, or where we were sent N and it claims success.
    """
    process = subprocess.Popen(
        line.argv,
        env={**env, **line.env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    readers = [
        threading.Thread(target=copy, args=(source, target, relabel), daemon=True)
        for source, target in ((process.stdout, out), (process.stderr, err))
    ]
    received: list[int] = []

    def kill() -> None:
        send(process, signal.SIGKILL)

    timer = threading.Timer(KILL_AFTER_S, kill)
    timer.daemon = True

    def pass_on(number: int, frame: Any) -> None:
        received.append(number)  # before the timer: a second signal may come while it starts, and `timeout` sends two
        if len(received) == 1:
            timer.start()
        send(process, number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        for reader in readers:
            reader.start()
        code = process.wait()
        for reader in readers:
            reader.join(DRAIN_S)
    finally:
        timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
    if code < 0:
        return 128 - code
    return 128 + received[0] if received and code == 0 else code


def send(process: subprocess.Popen, number: int) -> None:
    """Signal the launcher's whole process group."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def copy(source: IO[str], target: IO[str], relabel: Callable[[str], str]) -> None:
    """Whole lines, at once."""
    with source:
        for text in source:
            target.write(relabel(text.rstrip("\n")) + "\n")
            target.flush()
