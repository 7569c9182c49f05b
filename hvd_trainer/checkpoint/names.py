"""Names of tensors without what `torch.compile` puts into them, so that a compiled and a plain model share checkpoints."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

# A compiled module keeps the given one under this name: `0.weight` is `_orig_mod.0.weight` there, at any depth.
_COMPILED = re.compile(r"(?<![^.])_orig_mod(\.|$)")


def plain_name(name: str) -> str:
    """The name as it is where nothing is compiled.

    Example:
        >>> plain_name("_orig_mod.encoder._orig_mod.weight"), plain_name("encoder._orig_mod"), plain_name("my_orig_mod.weight")
        ('encoder.weight', 'encoder', 'my_orig_mod.weight')
    """
    return _COMPILED.sub("", name).removesuffix(".")


def plain_state_dict(module: torch.nn.Module) -> dict[str, Any]:
    """The module's state_dict under plain names."""
    return _renamed(module.state_dict(), plain_name)


def load_plain_state_dict(module: torch.nn.Module, state: dict[str, Any]) -> None:
    """Load a state_dict under plain names, or those of a compiled module, into a module that is compiled or not."""
    mine = {plain_name(name): name for name in (*module.state_dict(), *dict(module.named_modules(remove_duplicate=False)))}
    module.load_state_dict(_renamed(state, lambda name: mine.get(plain_name(name), name)))


def _renamed(state: dict[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """With the versions of the modules, which torch keeps beside the tensors."""
    result = OrderedDict((rename(name), value) for name, value in state.items())
    if hasattr(state, "_metadata"):
        result._metadata = OrderedDict((rename(name), value) for name, value in state._metadata.items())
    return result
