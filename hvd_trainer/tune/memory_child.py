"""Attempts in a process of their own, under a limit: running out of memory ends that process at worst."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Optional

import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.memory_limit import forget_peak, peak_bytes, private_bytes

FITS, TOO_LARGE, FAILED = "fits", "too large", "failed"
# Libraries say it in many ways; which of them an allocation that fails meets first is chance.
WORDS = ("out of memory", "out_of_memory", "can't allocate memory", "cannot allocate memory", "bad_alloc", "alloc_failed", "unable to allocate")
# What ends a process that got no memory: the kernel, abort() of a C++ library, a page of /dev/shm that is not there.
DEADLY = (signal.SIGKILL, signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV)


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended.

    Args:
        kind: FITS, TOO_LARGE or FAILED.
        peak_bytes: the most memory that the attempt held at once; None where it is not known.
        text: what it said.
    """

    kind: str
    peak_bytes: Optional[int] = None
    text: str = ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the exception means that memory ran out, by its kind or by what it says.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA error: out of memory")), is_out_of_memory(ValueError("x"))
        (True, True, False)
    """
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and any(word in str(error).lower() for word in WORDS)


class Child:
    """A spawned process that makes attempts, one after the other; a new one where an attempt ended it.

    Args:
        attempt: a function of the micro-batch that can be pickled; called in the child only.
        timeout_s: for the start, and for each attempt.

    Raises:
        ConfigError: (when it starts) `attempt` cannot be pickled, or the child does not start.
    """

    def __init__(self, attempt: Callable[[int], None], timeout_s: float) -> None:
        self._attempt, self._timeout_s = attempt, timeout_s
        self._process: Optional[multiprocessing.process.BaseProcess] = None
        self._pipe: Optional[Connection] = None

    def start(self) -> None:
        """Start the process and wait until it has loaded what it needs; nothing where it runs already."""
        if self._process is not None:
            return
        try:
            data = pickle.dumps((self._attempt, torch.get_num_threads()))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"the attempt cannot be sent to a process of its own: {error}",
                "a function or object that pickle can copy",
                "define it at the top level of a module",
            ) from error
        context = multiprocessing.get_context("spawn")  # a fork would copy MPI's threads and locks
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.send_bytes(data)
        answer = self._receive()
        if answer.kind != FITS:
            self.stop()
            raise ConfigError(
                f"the process for memory attempts did not start: {answer.text}",
                "a script whose import trains nothing",
                'put the training of the script under `if __name__ == "__main__":`',
            )

    def run(self, micro_batch: int, limit_bytes: Optional[int]) -> Outcome:
        """One attempt with at most `limit_bytes` more than the process had at its start."""
        self.start()
        self._pipe.send((micro_batch, limit_bytes))
        outcome = self._receive()
        if not self._process.is_alive() or outcome.kind == FAILED:
            self.stop()
        return outcome

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = self._pipe = None

    def _receive(self) -> Outcome:
        if not self._pipe.poll(self._timeout_s):
            return Outcome(FAILED, text=f"no answer within {self._timeout_s:g} s (timeout_s= allows for more)")
        try:
            return self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            if -code in DEADLY:
                return Outcome(TOO_LARGE, text=f"ended by {signal.Signals(-code).name}")
            return Outcome(FAILED, text=f"ended with exit code {code}")


def _serve(pipe: Connection) -> None:
    """The child: the attempt, then (micro-batch, limit) until the pipe closes."""
    try:
        attempt, num_threads = pickle.loads(pipe.recv_bytes())
        torch.set_num_threads(num_threads)
        torch.ones(1 << 20).exp().sum()  # a limit must not keep the threads of OpenMP from starting
    except BaseException:
        pipe.send(Outcome(FAILED, text=traceback.format_exc(limit=-3)))
        return
    pipe.send(Outcome(FITS))
    baseline = private_bytes()
    while True:
        try:
            micro_batch, limit_bytes = pipe.recv()
        except EOFError:
            return
        pipe.send(_limited(attempt, micro_batch, None if limit_bytes is None else baseline + limit_bytes))


def _limited(attempt: Callable[[int], None], micro_batch: int, private_limit: Optional[int]) -> Outcome:
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    before = forget_peak()
    if private_limit is not None and sys.platform == "linux":  # elsewhere it does not count what malloc maps
        resource.setrlimit(resource.RLIMIT_DATA, (private_limit if hard == resource.RLIM_INFINITY else min(hard, private_limit), hard))
    try:
        attempt(micro_batch)
        return Outcome(FITS, peak_bytes() - before)
    except BaseException as error:
        if is_out_of_memory(error):
            return Outcome(TOO_LARGE, text=f"{type(error).__name__}: {error}".splitlines()[0][:200])
        return Outcome(FAILED, text=traceback.format_exc(limit=-3))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        gc.collect()
