"""Starts of ranks ahead of the tests that look at them, two at a time: half of such a start is waiting for time to pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from hvd_trainer.comm.parts import module_exists
from tests.harness import Result, missing, run_ranks

AT_ONCE = 2


@dataclass(frozen=True)
class Start:
    """The arguments of `run_ranks`, hashable. A test that is parametrized with one as `ended` (indirect) gets its Result."""

    launcher: str
    np: int
    args: tuple[str, ...]
    timeout_s: float = 90.0


def run(start: Start) -> Result:
    """`run_ranks`, with a look whether what horovodrun would start is there."""
    if start.launcher.startswith("horovodrun") and not module_exists("horovod"):
        missing("horovod", "horovod is not installed")
    return run_ranks(start.launcher, start.np, start.args, start.timeout_s)


@pytest.fixture(scope="module")
def starts(request: pytest.FixtureRequest) -> Iterator[Callable[[Start], Result]]:
    """All starts of the selected tests of a file, in the order of the tests, from the first test on that asks for one."""
    wanted = [
        item.callspec.params["ended"]
        for item in request.session.items
        if item.module is request.module and "ended" in getattr(item, "fixturenames", ())
    ]
    with ThreadPoolExecutor(AT_ONCE) as executor:
        futures: dict[Start, Future[Result]] = {start: executor.submit(run, start) for start in dict.fromkeys(wanted)}
        yield lambda start: futures[start].result()
        for future in futures.values():
            future.cancel()


@pytest.fixture
def ended(request: pytest.FixtureRequest, starts: Callable[[Start], Result]) -> Result:
    """What the start that stands in the parametrization came to."""
    return starts(request.param)
