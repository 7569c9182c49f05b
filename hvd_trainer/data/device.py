"""Moving a batch, whatever containers it is made of, to a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def to_device(data: Any, device: torch.device) -> Any:
    """Tensors in lists, tuples and mappings, and objects with a `to` of their own, moved to `device`; the rest as it is."""
    if isinstance(data, torch.Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if hasattr(data, "to"):  # transformers' BatchEncoding, a PackedSequence, ...
        return data.to(device)
    if isinstance(data, Mapping):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(to_device(value, device) for value in data)
    return data
