"""A model whose compute takes a known time wherever it runs: for hosts that are namespaces and share two cores.

`make()` is what `hvd-trainer bench --script` asks for. Forward sleeps FIXED_MS + SAMPLE_MS a sample instead of computing,
because four hosts on two cores would compute at half speed, which is no property of the links. The parameters, their
gradients, the buckets and the messages are real: 1.2 million numbers in the shapes of a small transformer.
"""

import time

import torch

import hvd_trainer as ht

FIXED_MS, SAMPLE_MS, BATCH = 10.0, 1.0, 32
SHAPES = [(384, 128), (128, 128), (512, 128), (128, 512), (512,), (128,)] * 6


class Sleeper(torch.nn.Module):
    """Parameters that a loss is made of, after a sleep."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(shape) for shape in SHAPES)

    def forward(self, x):
        time.sleep((FIXED_MS + SAMPLE_MS * len(x)) / 1e3)
        return sum(part.sum() for part in self.parts) * x.mean()


def loss(model, batch):
    return ht.Weighted(model(batch) * len(batch), len(batch))


def make():
    model = Sleeper()
    return model, loss, lambda samples=BATCH: torch.ones(samples, 1), torch.optim.SGD(model.parameters(), lr=0.0)
