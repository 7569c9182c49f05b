"""The user's sampler: rank 0 draws the epoch's list, a function of (seed, epoch), and every rank gets it.

A sampler is code of somebody else's and may draw from any generator, so ranks cannot be trusted to draw the same. The list
takes 8 bytes a sample on every rank, as it does in torch; `shuffle=True` takes none.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.on_root import on_root
from hvd_trainer.data.sample_seeds import seed_all, seed_key, states_put_back
from hvd_trainer.errors import ConfigError, DataError

_SAMPLER = 2  # numbers of its own, not those of the samples


def check_sampler(sampler: Any) -> None:
    """Refuse what cannot be right, with the reason.

    Raises:
        ConfigError: it splits or batches by itself, or its length is not known.
    """
    name = type(sampler).__name__
    if hasattr(sampler, "num_replicas"):
        raise ConfigError(
            f"sampler={name}: it gives each rank a part of its own, filled up with samples that are seen twice",
            "one list for all ranks: the Loader divides each global batch, without filling up",
            "leave it out (shuffle=True shuffles every epoch anew)",
        )
    if isinstance(sampler, BatchSampler):
        raise ConfigError(
            f"sampler={name}: it cuts batches, which would be other ones on another number of ranks",
            "a sampler of single indices; the plan says how many make a global batch",
            "pass the sampler inside it, and the batch size as BatchPlan(global_batch=)",
        )
    if not (isinstance(sampler, Iterable) and hasattr(sampler, "__len__")):
        raise ConfigError(
            f"sampler={name}: {'its length is not known' if isinstance(sampler, Iterable) else 'not iterable'}",
            "an iterable of indices with len(): the steps of an epoch are counted from it",
            "give it a __len__, or pass a list of indices",
        )


def epoch_order(sampler: Any, comm: Communicator, *, seed: int, epoch: int, length: int, num_samples: int) -> np.ndarray:
    """The indices of an epoch, the same on all ranks; call on all.

    Args:
        sampler: of rank 0; others' are not asked.
        comm: the ranks.
        seed, epoch: global generators are seeded by them while it draws, and so is its attribute `generator`; its
            `set_epoch`, if it has one, is called.
        length: indices that an epoch must have.
        num_samples: of the data set; indices are 0 .. num_samples - 1.

    Raises:
        DataError: on all ranks: another number of indices, or one that is no index of the data set.
    """

    def draw() -> np.ndarray:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        key = seed_key(seed, epoch, _SAMPLER)
        if isinstance(getattr(sampler, "generator", None), torch.Generator):
            sampler.generator.manual_seed(key)
        with states_put_back():
            seed_all(key, 0)
            found = list(islice(iter(sampler), length + 1))
        return checked(found, type(sampler).__name__, epoch, length, num_samples)

    return on_root(comm, draw, f"sampler.{epoch}")


def checked(found: list, name: str, epoch: int, length: int, num_samples: int) -> np.ndarray:
    """The list as an array of int64, or a DataError."""
    if len(found) != length:
        there = f"more than {length}" if len(found) > length else str(len(found))
        raise DataError(
            f"sampler {name} gave {there} indices in epoch {epoch}, its len() was {length}",
            f"{length} in every epoch",
            "correct its __len__ or __iter__; an iterator that is used up after one epoch must be made a list",
        )
    wrong = next((i for i in found if isinstance(i, bool) or not hasattr(i, "__index__") or getattr(i, "ndim", 0)), None)
    if wrong is not None:
        raise DataError(
            f"sampler {name} gave {wrong!r}, not an index",
            "whole numbers",
            "a sampler that gives lists cuts batches: pass single indices, and the batch size as BatchPlan(global_batch=)",
        )
    order = np.array([int(index) for index in found], dtype=np.int64)
    outside = order[(order < 0) | (order >= num_samples)]
    if len(outside):
        raise DataError(
            f"sampler {name} gave index {outside[0]}, the data set has {num_samples} samples",
            f"0 .. {num_samples - 1}",
            "make the sampler for this data set",
        )
    return order
