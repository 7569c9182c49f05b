"""Indices -> a collated batch, in the training process or in a worker: the same batch in both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

import torch
from torch.utils.data import default_collate

from hvd_trainer.data.sample_seeds import draws_nothing, random_states, same_states, seed_all, seed_key, states_put_back
from hvd_trainer.errors import DataError

_COLLATE = 1  # a key of its own: the collate function's numbers are not those of the first sample


class SampleReader:
    """Fetches and collates samples, each under its own random seed. Workers get a copy by pickle.

    Args:
        dataset: map-style.
        collate_fn: list of samples -> batch; None: torch's `default_collate`.
        seed: of the random numbers drawn in `dataset[index]`.
    """

    def __init__(self, dataset: Any, collate_fn: Optional[Callable[[list], Any]] = None, seed: int = 0) -> None:
        self.dataset, self.seed = dataset, seed
        self.at: Optional[int] = None  # index of the sample under way, for messages
        self._collate = collate_fn or default_collate
        self._samples_draw = not draws_nothing(dataset)
        self._draws = self._samples_draw or collate_fn not in (None, default_collate)
        self._at_once = hasattr(dataset, "__getitems__")

    def read(self, epoch: int, indices: list[int]) -> Any:
        """The batch of these samples; of none: like a batch, with tensors of length 0.

        Raises:
            DataError: the data set has no sample for an index below its length.
        """
        if not indices:
            return without_samples(self.read(epoch, [0]))
        if not self._draws:
            return self._collate(self._fetch(indices))
        with states_put_back():
            samples = self._fetch_seeded(seed_key(self.seed, epoch), indices) if self._samples_draw else self._fetch(indices)
            self.at = None
            seed_all(seed_key(self.seed, epoch, _COLLATE), indices[0])
            return self._collate(samples)

    def _fetch_seeded(self, key: int, indices: list[int]) -> list:
        """One at a time under the seed of each; at once where the data set can and draws nothing meanwhile."""
        if self._at_once:
            seed_all(key, indices[0])
            before = random_states()
            samples = self._fetch(indices)
            if same_states(before, random_states()):
                return samples
            self._at_once = False  # it draws (torch's Subset of an augmented data set does)
        samples = []
        for index in indices:
            seed_all(key, index)
            samples += self._fetch([index])
        return samples

    def _fetch(self, indices: list[int]) -> list:
        self.at = indices[0]
        try:
            if hasattr(self.dataset, "__getitems__"):
                return self.dataset.__getitems__(indices)
            samples = []
            for index in indices:
                self.at = index
                samples.append(self.dataset[index])
            return samples
        except IndexError as error:
            raise DataError(
                f"the data set has len() {len(self.dataset)} but failed with {error!r} for one of the indices {indices[:8]}",
                "a sample for every index below its length",
                "correct its __len__ or __getitem__",
            ) from error


def without_samples(data: Any) -> Any:
    """A collated batch cut down to no samples: tensors of length 0, everything else as it is."""
    if isinstance(data, torch.Tensor):
        return data[:0]
    if isinstance(data, Mapping):
        return {key: without_samples(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(without_samples, data))
    if isinstance(data, (list, tuple)):
        return type(data)(map(without_samples, data))
    return data
