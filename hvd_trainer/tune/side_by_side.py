"""Several jobs at the same time, each on processors of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Optional

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.runner import Interrupted, Refused, TrialRunner
from hvd_trainer.tune.trial import TrialResult

Results = list[Optional[TrialResult]]


def shares(processors: Sequence[int], jobs: int) -> list[list[int]]:
    """Processors for each job: as many for each, none twice.

    Example:
        >>> shares([0, 1, 2, 3, 4], 2)
        [[0, 1], [2, 3]]
    """
    each = len(processors) // jobs
    return [list(processors[each * number : each * (number + 1)]) for number in range(jobs)]


def threads_for(jobs: int, ranks: Sequence[int], threads: Optional[int], cores: int) -> int:
    """Threads of a rank where so many jobs run at once.

    Args:
        jobs: at once.
        ranks: numbers of them.
        threads: as asked for; None: what the cores give.
        cores: of this machine.

    Raises:
        ConfigError: together they want more than the cores.

    Example:
        >>> threads_for(2, [1, 2], None, 16)
        4
    """
    most = max(ranks)
    wanted = threads or max(1, cores // (jobs * most))
    if jobs * most * wanted > cores:
        raise ConfigError(
            f"--jobs {jobs} with {most} ranks of {wanted} thread{'s' * (wanted > 1)} on {cores} cores", f"at most {cores} threads in all", "fewer jobs, ranks or threads"
        )
    return wanted


class SideBySide:
    """Runs jobs on slots.

    Args:
        runners: one for each slot.
        stop: ends the jobs under way when it is set.
    """

    def __init__(self, runners: Sequence[TrialRunner], stop: Optional[threading.Event] = None) -> None:
        self.runners, self._stop = list(runners), stop or threading.Event()

    def __len__(self) -> int:
        return len(self.runners)

    def run(self, jobs: Sequence[Callable[[TrialRunner], Results]]) -> tuple[list[Optional[Results]], Optional[BaseException]]:
        """Run as many jobs as there are slots at most, and wait for all.

        Returns:
            The results of each, None where it raised; and what was raised, Ctrl-C before others.
        """
        if len(jobs) == 1:
            outcomes = [_caught(jobs[0], self.runners[0])]
        else:
            with ThreadPoolExecutor(len(jobs)) as pool:
                futures = [pool.submit(_caught, job, runner) for job, runner in zip(jobs, self.runners)]
                interrupt: Optional[KeyboardInterrupt] = None
                try:
                    outcomes = [future.result() for future in futures]
                except KeyboardInterrupt as error:
                    interrupt = error
                    self._stop.set()
                    outcomes = [future.result() for future in futures]
            if interrupt is not None:
                outcomes.append((None, interrupt))
        found, errors = [], []
        for results, error in outcomes[: len(jobs)]:
            results = error.results if isinstance(error, (Interrupted, Refused)) else results
            found.append(results and [result and replace(result, shared_by=len(jobs)) for result in results])
        errors = [error for _, error in outcomes if error is not None]
        return found, next((error for error in errors if isinstance(error, KeyboardInterrupt)), errors[0] if errors else None)


def _caught(job: Callable[[TrialRunner], Results], runner: TrialRunner) -> tuple[Optional[Results], Optional[BaseException]]:
    try:
        return job(runner), None
    except BaseException as error:
        return None, error
