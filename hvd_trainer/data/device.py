"""Moving a batch, whatever containers it is made of, to a device."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch


def to_device(data: Any, device: torch.device) -> Any:
    """Tensors in lists, tuples and mappings, and objects with a `to` of their own, moved to `device`; the rest as it is."""
    if isinstance(data, torch.Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    # transformers' BatchEncoding, a PackedSequence, ...; on the class: a namedtuple's field or a key of that name is data.
    if callable(getattr(type(data), "to", None)):
        return data.to(device)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, Mapping):
        return _filled(data, {key: to_device(value, device) for key, value in data.items()})
    if isinstance(data, (list, tuple)):
        return _filled(data, [to_device(value, device) for value in data])
    return data


def _filled(data: Any, moved: Any) -> Any:
    """`moved` in a container of the class of `data`, whatever its constructor wants; plain where a copy cannot be filled."""
    kind = type(data)
    if kind in (dict, list):
        return moved
    if isinstance(data, tuple):
        return kind(moved) if kind is tuple or kind.__new__ is tuple.__new__ else tuple(moved)
    try:
        result = copy.copy(data)  # keeps attributes (lengths, names) and a defaultdict's factory
        if isinstance(data, Mapping):
            for key, value in moved.items():
                result[key] = value
        else:
            result[:] = moved
    except Exception:  # a mapping without assignment, such as MappingProxyType
        return moved
    return result
