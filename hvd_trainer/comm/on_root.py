"""Do something on rank 0 alone, with its result or its error on every rank: nobody waits for a rank that raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import HvdTrainerError

T = TypeVar("T")


def on_root(comm: Communicator, function: Callable[[], T], name: str) -> T:
    """Call `function` on rank 0 and return what it returned (by pickle) on every rank.

    Args:
        comm: the ranks.
        function: called on rank 0 only; must not talk to other ranks.
        name: of the collective that carries the result.

    Raises:
        HvdTrainerError: what `function` raised, on all ranks; other exceptions are wrapped into one that names rank 0.
    """
    outcome = None
    if comm.rank == 0:
        try:
            outcome = (True, function())
        except HvdTrainerError as error:
            outcome = (False, error)
        except Exception as error:
            wrapped = HvdTrainerError(f"rank 0 failed at {comm.where}: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            outcome = (False, wrapped)
    done, value = comm.broadcast_object(outcome, 0, name)
    if not done:
        raise value
    return value
