"""Attempts that child processes can load."""

import os
import signal

import torch

import hvd_trainer as ht

MIB = 2**20


def hold(micro_batch):
    """One MiB a sample, touched."""
    torch.ones(micro_batch * MIB // 4)


def killed_above_ten(micro_batch):
    """What the kernel does to a process on a node without memory."""
    if micro_batch > 10:
        os.kill(os.getpid(), signal.SIGKILL)


def broken(micro_batch):
    raise ValueError("a bug in the model")


def leave(micro_batch):
    os._exit(3)


class Wide(torch.nn.Module):
    """Activations of 1 MiB a sample in each of two layers, kept for backward."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(MIB // 4))

    def forward(self, x):
        return (x * self.scale).tanh().sin()


def loss_fn(model, batch):
    return ht.Weighted(model(batch).sum(), len(batch))


def make_batch(micro_batch):
    return torch.ones(micro_batch, 1)
