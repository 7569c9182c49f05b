"""Data sets that draw random numbers, in a module of their own so that worker processes can import them."""

import os
import random

import numpy as np
import torch


class Augmented(torch.utils.data.Dataset):
    """Sample i is i, and one number from each of the three generators."""

    def __init__(self, num_samples=30):
        self._num_samples = num_samples

    def __len__(self):
        return self._num_samples

    def __getitem__(self, index):
        return torch.tensor([float(index), random.random(), np.random.rand(), torch.rand(()).item()], dtype=torch.float64)


class Broken(Augmented):
    """Fails for one sample."""

    def __getitem__(self, index):
        if index == 13:
            raise KeyError("no label for this one")
        return super().__getitem__(index)


class Short(Augmented):
    """Has fewer samples than it says."""

    def __getitem__(self, index):
        return [1.0, 2.0][index]


def tell_threads(samples):
    """A collate function: threads of the process that runs it, and its random number."""
    return torch.get_num_threads(), torch.rand(()).item(), torch.stack(samples)


class remember_worker:
    """A `worker_init_fn`: writes threads and process id into folder/<worker>."""

    def __init__(self, folder):
        self._folder = folder

    def __call__(self, worker):
        (self._folder / str(worker)).write_text(f"{torch.get_num_threads()} {os.getpid()}")
