"""Operations of two collectives, where the second needs the result of the first and somebody must start it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Relay:
    """Starts second collectives, always in the order in which the operations were submitted.

    That order is the same on all ranks, and before a rank waits for anything it starts all that was submitted before it.
    If each rank started only what it waits for, two ranks that wait in different orders would wait for each other.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        self._submitted = self._started = 0

    def add(self, ready: Callable[[], bool], start: Callable[[], None]) -> int:
        """A first collective was submitted.

        Args:
            ready: whether it is over; changes nothing.
            start: waits for it, and submits the second.

        Returns:
            The mark of this operation.
        """
        self._waiting.append((ready, start))
        self._submitted += 1
        return self._submitted

    def mark(self) -> int:
        """The mark of the last operation that was submitted."""
        return self._submitted

    def run(self, mark: int) -> None:
        """Start the second collective of all operations up to this mark."""
        while self._started < mark:
            self._start_next()

    def run_ready(self) -> None:
        """Start those that need no waiting."""
        while self._waiting and self._waiting[0][0]():
            self._start_next()

    def _start_next(self) -> None:
        self._started += 1
        self._waiting.popleft()[1]()
