"""The random states of one rank (python, numpy, torch), so that dropout goes on where it was."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def get_rng_state(device: torch.device) -> dict[str, Any]:
    """Plain numbers and tensors only, so that the file loads without running code."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Undo `get_rng_state`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def reseed(seed: int, step: int, rank: int) -> None:
    """Fresh, reproducible states for a resume on another number of ranks, where the old states cannot be dealt out."""
    first, second, third = np.random.SeedSequence([seed & (2**64 - 1), step, rank]).generate_state(3)
    random.seed(int(first))
    np.random.seed(int(second))
    torch.manual_seed(int(third))
