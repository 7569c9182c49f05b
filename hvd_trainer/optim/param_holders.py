"""Who holds a parameter's memory: an update in flat buffers, which must give it back before somebody else takes or writes it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

import torch


class Holder(Protocol):
    """Attributes: shared: whether other ranks see the memory, too."""

    shared: bool

    def give_back(self) -> None:
        """Each parameter gets memory of this rank alone."""


# By the parameter's id: not an attribute of it, which torch.save and deepcopy would follow. A holder keeps its parameters alive,
# so no other object can have the id meanwhile.
_holders: weakref.WeakValueDictionary[int, Holder] = weakref.WeakValueDictionary()


def hold(params: Iterable[torch.nn.Parameter], holder: Holder) -> None:
    """From now on these parameters lie in memory of the holder's."""
    for param in params:
        _holders[id(param)] = holder


def let_go(param: torch.nn.Parameter, holder: Holder) -> None:
    """The holder holds it no more; nothing where another one does."""
    if _holders.get(id(param)) is holder:
        del _holders[id(param)]


def take_over(param: torch.nn.Parameter) -> None:
    """Where another optimizer holds this parameter's memory, it gives all of its own back first."""
    other = _holders.get(id(param))
    if other is not None:
        other.give_back()


def unshare(params: list[torch.nn.Parameter]) -> None:
    """Each rank is about to write to these: where another optimizer holds one in memory that ranks share, it gives that back first."""
    for param in params if _holders else ():
        other = _holders.get(id(param))
        if other is not None and other.shared:
            other.give_back()
