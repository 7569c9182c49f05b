"""Optimizers by name and settings, so that a config file, a command line and a search can choose one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable
from typing import Any, Union

import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.lamb import LAMB
from hvd_trainer.optim.lars import LARS
from hvd_trainer.optim.trust_ratio import LayerwiseOptimizer, layerwise_groups


@functools.cache
def optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    """Lower-case name -> class: LARS, LAMB and all of `torch.optim` that take one gradient a step (so not LBFGS).

    Example:
        >>> [name for name in optimizers() if name in ("adamw", "lamb", "lars", "lbfgs", "sgd")]
        ['adamw', 'lamb', 'lars', 'sgd']
    """
    found: dict[str, type[torch.optim.Optimizer]] = {"lars": LARS, "lamb": LAMB}
    for name, value in vars(torch.optim).items():
        is_ours_to_give = inspect.isclass(value) and issubclass(value, torch.optim.Optimizer)
        if is_ours_to_give and value not in (torch.optim.Optimizer, torch.optim.LBFGS):
            found[name.lower()] = value
    return dict(sorted(found.items()))


def make_optimizer(
    name: str, model: Union[torch.nn.Module, Iterable[torch.Tensor], Iterable[dict[str, Any]]], **settings: Any
) -> torch.optim.Optimizer:
    """The optimizer of this name with the settings (lr, momentum, ...) of its class.

    Numbers given as text and lists for tuples, as YAML reads them, are fine.

    Args:
        name: "sgd", "adamw", "lars", "lamb", ... (`optimizers()` has all), in any case.
        model: a module; or parameters or param groups as torch's classes take them. With a module, LARS and LAMB leave
            biases and norms out by the kind of layer, also where their tensors have more than one dimension.

    Raises:
        ConfigError: no such name or setting, or a value that the class refuses; the message lists what there is.

    Example:
        >>> make_optimizer("SGD", torch.nn.Linear(2, 1), lr=0.1, momentum=0.9).defaults["momentum"]
        0.9
        >>> len(make_optimizer("lars", torch.nn.Linear(2, 1), lr=1.0).param_groups)         # weights; biases
        2
    """
    known = optimizers()
    kind = known.get(name.lower()) if isinstance(name, str) else None
    if kind is None:
        near = difflib.get_close_matches(str(name).lower(), known, n=1)
        raise ConfigError(f"no optimizer is called {name!r}", ", ".join(known), f"did you mean {near[0]!r}?" if near else "make_optimizer('sgd', ...)")
    takes = inspect.signature(kind).parameters
    allowed = [parameter for parameter in takes if parameter not in ("self", "params")]
    for setting in settings:
        if setting not in allowed:
            near = difflib.get_close_matches(setting, allowed, n=1)
            raise ConfigError(f"{kind.__name__} has no setting {setting!r}", ", ".join(allowed), f"did you mean {near[0]}?" if near else "leave it out")
    missing = [p for p in allowed if takes[p].default is inspect.Parameter.empty and p not in settings]
    if missing:
        raise ConfigError(f"{kind.__name__} without {', '.join(missing)}", "a value", f"make_optimizer({name!r}, model, {missing[0]}=...)")
    if isinstance(model, torch.nn.Module):
        model = layerwise_groups(model) if issubclass(kind, LayerwiseOptimizer) else model.parameters()
    try:
        return kind(model, **{setting: _plain(value) for setting, value in settings.items()})
    except ConfigError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{kind.__name__}({settings}): {error}", "values that torch's class takes", "correct the setting") from error


def _plain(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text and has no tuples."""
    if isinstance(value, list):
        return tuple(_plain(each) for each in value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
