"""torch's compiler is loaded where somebody compiles, instead of by the first optimizer.

`torch.optim.Optimizer` tells the compiler to keep out of four of its methods, and for that loads the whole of it (torch._dynamo, 820
modules): 70 MiB and 1.5 s in every rank that never compiles anything. torch keeps "the method, as the compiler is to see it" in an
attribute of the method and looks there first; `defer` puts the method itself there until the compiler has been loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

METHODS = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
COMPILER, KEPT_IN = "torch._dynamo", "__dynamo_disable"


def defer() -> None:
    """From here on an optimizer does not load the compiler; what `optimizer.step()` of torch itself does stays as it is.

    Nothing happens where the compiler is there already, or where this torch keeps its methods in another way.
    """
    if COMPILER in sys.modules:
        return
    for name in METHODS:
        method = getattr(Optimizer, name)
        bare = getattr(method, "__wrapped__", None)
        if bare is not None and not hasattr(bare, KEPT_IN):
            setattr(bare, KEPT_IN, _until_loaded(method, bare))


def _until_loaded(method: Callable, bare: Callable) -> Callable:
    """Calls `bare`; when the compiler is there, takes itself away and lets torch do what it does without us."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return bare(*args, **kwargs)
        if getattr(bare, KEPT_IN, None) is call:
            delattr(bare, KEPT_IN)
        return method(*args, **kwargs)

    return call
