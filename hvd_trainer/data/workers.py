"""Worker processes that fetch and collate samples ahead of the training, through torch's DataLoader.

They are started with "spawn", each a fresh interpreter. "fork" would copy a process in the middle of MPI's and Horovod's
threads, locks and registered memory: it crashes, hangs, or sends a message twice, now and then, after hours (MPI leaves
it undefined, and Horovod has reports of all three). "forkserver" is as safe, but saves nothing here: it loads torch in
each worker as well, and keeps one more process that outlives a rank which is ended.

What to read travels with each task (epoch, indices), so a worker has no state of its own that a resume would lose.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pickle import PicklingError
from typing import Any, Optional

import torch
from torch.utils.data import DataLoader, Sampler, get_worker_info

from hvd_trainer.data.reader import SampleReader
from hvd_trainer.errors import ConfigError, DataError

Task = tuple[int, list[int]]  # epoch, indices of one micro-batch


class Workers:
    """Worker processes of one rank, started by the first `start` and kept until this object goes.

    Args:
        reader: copied to each of them by pickle.
        num_workers: processes, >= 1.
        prefetch: micro-batches that each reads ahead, >= 1.
        init_fn: called with the worker's number (from 0) in each, before its first sample; may be None.
        who: "rank 1", for messages.

    Raises:
        ConfigError: (in `start`) reader or init_fn cannot be pickled.
    """

    def __init__(self, reader: SampleReader, num_workers: int, prefetch: int, init_fn: Optional[Callable[[int], None]], who: str) -> None:
        self._who, self._reader, self._reading = who, reader, 0
        self._tasks = _Tasks()
        self._loader = DataLoader(
            _InWorker(reader),
            batch_size=None,  # a task is a micro-batch already
            sampler=self._tasks,
            collate_fn=_unchanged,
            num_workers=num_workers,
            prefetch_factor=prefetch,
            persistent_workers=True,  # an interpreter with torch takes seconds to start
            multiprocessing_context="spawn",
            worker_init_fn=functools.partial(_begin, init_fn),
            generator=torch.Generator(),  # else it draws its seed from the global one, and dropout would change
        )

    def start(self, tasks: Iterable[Task]) -> Reading:
        """Read these, in this order, from now on; what an earlier `start` has left is dropped."""
        _start_tracker()
        self._tasks.coming = iter(tasks)
        self._reading += 1
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Got pickle error")  # its advice is "fork"
                results = iter(self._loader)
        except (PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{self._who}: the data set, collate_fn or worker_init_fn cannot be sent to worker processes: {error}",
                "objects that pickle can copy: no lambda, no class or function defined inside a function, no open file or lock",
                "define them at the top level of a module and open files in the first __getitem__; or num_workers=0",
            ) from error
        return Reading(self, results, self._reading)

    def is_current(self, number: int) -> bool:
        """Whether no later `start` has taken the workers over."""
        return number == self._reading


class Reading:
    """The results of one `start`."""

    def __init__(self, workers: Workers, results: Iterator[Any], number: int) -> None:
        self._workers, self._results, self._number = workers, results, number
        self._next = 0

    def fetch(self, number: int, task: Task) -> Any:
        """The batch of task `number` (from 0). One that was left out is dropped, one that was had is read again here.

        Raises:
            DataError: reading failed, or a worker ended, or another epoch of the same loader was begun meanwhile.
        """
        if number < self._next:
            return self._workers._reader.read(*task)
        if not self._workers.is_current(self._number):
            raise DataError(
                "two epochs of one Loader with num_workers > 0 are read at the same time",
                "one after the other: its workers serve one",
                "make a second Loader",
            )
        while self._next <= number:
            result = self._receive()
            self._next += 1
        if isinstance(result, Failure):
            raise DataError(f"{self._workers._who}, {result.where}: {result.what}", result.allowed, result.fix)
        return result

    def _receive(self) -> Any:
        try:
            return next(self._results)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise DataError(
                f"{self._workers._who}: {error}",
                "workers that live as long as the job",
                "read what the worker printed above; too little memory ends them too; num_workers=0 shows an error where it "
                'happens. A script that trains at its top level needs `if __name__ == "__main__":` around that',
            ) from error


@dataclass(frozen=True)
class Failure:
    """What went wrong in a worker, as text: not every exception can be sent or rebuilt."""

    where: str
    what: str
    allowed: str = ""
    fix: str = ""


class _InWorker:
    """What torch's DataLoader takes for a data set: its "index" is a task."""

    def __init__(self, reader: SampleReader) -> None:
        self._reader = reader

    def __getitem__(self, task: Task) -> Any:
        try:
            return self._reader.read(*task)
        except Exception as error:
            at = "the collate function" if self._reader.at is None else f"sample {self._reader.at}"
            where = f"worker {get_worker_info().id}, {at}"
            if isinstance(error, DataError):
                return Failure(where, error.given, error.allowed, error.fix)
            return Failure(where, f"{type(error).__name__}: {error}\n{traceback.format_exc().rstrip()}")


class _Tasks(Sampler):
    """The tasks of the reading under way, handed out as the workers get free."""

    coming: Iterator[Task] = iter(())

    def __iter__(self) -> Iterator[Task]:
        return self.coming


def _start_tracker() -> None:
    """Start multiprocessing's resource tracker so that it keeps quiet.

    It removes the semaphores of a rank that is aborted, which is right, and would print two lines about each such rank
    behind the message that says why the job ended. It takes its warning filters from its command line.
    """
    quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
    sys.warnoptions.append(quiet)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(quiet)


def _unchanged(batch: Any) -> Any:
    return batch


def _begin(init_fn: Optional[Callable[[int], None]], worker: int) -> None:
    """First thing in a worker (torch has set one thread by then)."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if init_fn is not None:
        init_fn(worker)


def _leave_with_parent() -> None:
    """A rank that is aborted or killed tells nobody; torch's own look is every 5 s, and not while a sample is read."""
    multiprocessing.parent_process().join()
    os._exit(1)
