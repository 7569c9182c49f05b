"""What happens on an uncaught error: one clear message for the whole job, exit code not 0, no process left waiting.

Without this, the ranks that did not fail wait in a collective for the one that did.

Who speaks: rank 0 prints at once and ends the job. The others wait a little first, so that a fault that hits all ranks
alike (a typo in the config) is printed once; a fault on one rank only is still printed by that rank. An error that
merely says that another rank ended waits longest, so that the cause is printed before it, and the job ends before it is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from hvd_trainer import env, errors, log
from hvd_trainer.comm import launched
from hvd_trainer.errors import CollectiveError, HvdTrainerError, StartError

if TYPE_CHECKING:
    from hvd_trainer.comm.api import Communicator

GRACE_S = 1.0  # rank 1 waits this long for rank 0 to speak
GRACE_PER_RANK_S = 0.1
LONGEST_GRACE_S = 2.0
CONSEQUENCE_GRACE_S = 2.5
HARD_EXIT_S = 3.0  # after this, the process ends whatever the launcher's abort does

_installed: Guard | None = None


class OtherRankEnded(CollectiveError):
    """A collective broke because another rank ended: the cause is that rank's to tell."""


class LonelyRank(StartError):
    """The library does not see the other ranks. All find that alike, and nobody can end the others: rank 0 speaks."""


class Guard:
    """The hooks of one job: `sys.excepthook`, and for several ranks `sys.exit`, which calls no hook."""

    def __init__(self, comm: Communicator | None) -> None:
        self.comm = comm
        self.exit_status: object = None
        self._excepthook, self._exit = sys.excepthook, sys.exit
        self._on_error, self._on_exit = self.on_error, self.on_exit  # bound once, to be recognised in `remove`

    def install(self) -> None:
        sys.excepthook = self._on_error
        if place(self.comm)[1] > 1:
            sys.exit = self._on_exit

    def remove(self) -> None:
        """Put the hooks back, unless somebody has put theirs on top since."""
        if sys.excepthook is self._on_error:
            sys.excepthook = self._excepthook
        if sys.exit is self._on_exit:
            sys.exit = self._exit

    def on_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if place(self.comm)[1] > 1:
            fail_job(error, self.comm)
        if isinstance(error, HvdTrainerError):
            log.warn(f"hvd_trainer: {public_name(kind)}: {error}")
        else:
            self._excepthook(kind, error, trace)

    def on_exit(self, status: object = None) -> None:
        """`sys.exit` raises as ever; if that really ends the program, `at_exit` tells the other ranks."""
        self.exit_status = status
        self._exit(status)


def install(comm: Communicator | None) -> None:
    """From now on an uncaught error in this process ends the job; `uninstall` undoes it. None: not connected yet."""
    global _installed
    uninstall()
    _installed = Guard(comm)
    _installed.install()


def uninstall() -> None:
    """Remove the hooks, if there are any."""
    global _installed
    if _installed is not None:
        _installed.remove()
        _installed = None


def at_exit(comm: Communicator) -> None:
    """Registered by `init`: a program that leaves through `sys.exit(7)` ends the job with that code; another closes."""
    status = None if _installed is None else _installed.exit_status
    if comm.closed:
        return
    if exit_code(SystemExit(status)):
        fail_job(SystemExit(status), comm)
    comm.close()


def who(comm: Communicator | None = None) -> str:
    """ "rank 1 of 4": from the communicator, or from what the launcher says while there is none."""
    rank, size = place(comm)
    return f"rank {rank} of {size}"


def place(comm: Communicator | None = None) -> tuple[int, int]:
    """Rank and size, from the larger of the communicator's view and the launcher's."""
    if comm is not None and comm.size > 1:
        return comm.rank, comm.size
    seen = launched.read(env.snapshot())
    return seen.rank, seen.size


def fail_job(error: BaseException, comm: Communicator | None = None) -> NoReturn:
    """Tell the user about an uncaught error, once for the job, and end all its ranks.

    Args:
        error: what was raised. SystemExit without a code, or with 0, ends this rank alone and quietly.
        comm: the communicator, None where there is none yet (the rank then comes from the environment).

    Raises:
        BaseException: on a single process `error` itself; if it is an HvdTrainerError and nobody catches it, its message
            is shown without a traceback. With more ranks the process ends and nothing returns.

    Example:
        >>> from hvd_trainer.errors import ConfigError
        >>> fail_job(ConfigError("lr=-1", "lr > 0"))
        Traceback (most recent call last):
        ...
        hvd_trainer.errors.ConfigError: lr=-1
          allowed: lr > 0
    """
    if comm is None and _installed is not None:
        comm = _installed.comm
    rank, size = place(comm)
    code = exit_code(error)
    if size == 1:
        if comm is not None:
            comm.close()
        install(None)
        raise error
    if code == 0:
        raise error
    if isinstance(error, LonelyRank) and rank > 0:
        exit_now(code)
    time.sleep(grace(error, rank))
    log.warn(describe(error, rank, size, comm.where if comm is not None else "start"))
    if comm is not None and comm.size > 1:
        end(comm, code)
    exit_now(code)


def grace(error: BaseException, rank: int) -> float:
    """Seconds that this rank leaves to the others to tell the same, or the cause, first.

    Example:
        >>> grace(ValueError(), 0), grace(ValueError(), 3), grace(OtherRankEnded("x"), 0)
        (0.0, 1.2, 2.5)
    """
    if isinstance(error, OtherRankEnded):
        return CONSEQUENCE_GRACE_S
    return 0.0 if rank == 0 else round(min(GRACE_S + GRACE_PER_RANK_S * (rank - 1), LONGEST_GRACE_S), 3)


def exit_code(error: BaseException) -> int:
    """The exit code of the job for an error: 130 for Ctrl-C, what `sys.exit` was given, else 1.

    Example:
        >>> [exit_code(e) for e in (ValueError(), KeyboardInterrupt(), SystemExit(7), SystemExit(None))]
        [1, 130, 7, 0]
    """
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, SystemExit):
        if error.code is None:
            return 0
        return error.code & 0xFF if isinstance(error.code, int) else 1
    return 1


def describe(error: BaseException, rank: int, size: int, where: str) -> str:
    """The message: what failed, on which rank, at which step; a traceback only where it is no mistake of the user's."""
    line = f"hvd_trainer: rank {rank} of {size} failed at {where}: "
    if isinstance(error, CollectiveError) and str(error).startswith("rank "):  # says itself which rank and where
        return f"hvd_trainer: {public_name(type(error))}: {error}"
    if isinstance(error, HvdTrainerError):
        return f"{line}{public_name(type(error))}: {error}"
    if isinstance(error, SystemExit):
        return (
            f"hvd_trainer: rank {rank} of {size} ended at {where} with sys.exit({error.code!r}); the others are ended"
        )
    if isinstance(error, KeyboardInterrupt):
        return f"hvd_trainer: rank {rank} of {size} was interrupted (Ctrl-C) at {where}"
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    return f"{line}{type(error).__name__}: {error}\n{text}"


def public_name(kind: type[BaseException]) -> str:
    """The name that users know: of the class in `hvd_trainer.errors` where `kind` is an internal one of ours.

    Example:
        >>> public_name(OtherRankEnded), public_name(KeyError)
        ('CollectiveError', 'KeyError')
    """
    return next((k.__name__ for k in kind.__mro__ if k.__module__ == errors.__name__), kind.__name__)


def end(comm: Communicator, code: int) -> NoReturn:
    """`comm.abort`, and if that does not end the process in time, the end of the process."""
    exit_soon(code)
    try:
        comm.abort(code)
    finally:
        exit_now(code)


def exit_soon(code: int) -> None:
    """End this process in `HARD_EXIT_S` seconds whatever else happens."""
    timer = threading.Timer(HARD_EXIT_S, os._exit, (code,))
    timer.daemon = True
    timer.start()


def exit_now(code: int) -> NoReturn:
    """End this process without atexit handlers (MPI's and Horovod's would wait for the other ranks)."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
