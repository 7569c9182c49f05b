"""A training of milliseconds, and callbacks that watch it."""

from __future__ import annotations

import threading

import torch
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator

NUM_SAMPLES, GLOBAL_BATCH, STEPS_PER_EPOCH = 14, 4, 4  # the last batch has 2

SCHEDULERS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 10, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6, eta_min=0.01),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.5, 1.0, 4),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=30),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.05, max_lr=0.2, step_size_up=5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=0.5),
}
PURE = {
    "none": None,
    "cosine": ht.schedules.cosine(total_epochs=5),
    "multistep": ht.schedules.multistep([1.5, 3]),
    "function": lambda step: 0.97**step,
}


def make_data(num_samples=NUM_SAMPLES):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_samples, 3, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x.sum(1, keepdim=True).tanh())


_one_at_a_time = threading.Lock()  # ranks that are threads share torch's random state


def make_model(dropout=0.0, seed=0):
    with _one_at_a_time:
        torch.manual_seed(seed)
        layers = [torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(4, 1)]
    return torch.nn.Sequential(*layers).double()


def loss_fn(model, batch):
    x, y = batch
    return ht.Weighted((model(x) - y).square().sum(), len(y))


def make_loader(comm, reference_batch=2, **options):
    names = ("num_samples", "global_batch", "micro_batch")
    own = {name: options.pop(name) for name in names if name in options}
    plan = ht.BatchPlan(own.get("global_batch", GLOBAL_BATCH), comm.size, reference_batch, own.get("micro_batch"))
    return ht.Loader(make_data(own.get("num_samples", NUM_SAMPLES)), plan, comm, **options)


def make_trainer(comm=None, callbacks=(), scheduler=None, optimizer=None, dropout=0.0, **options):
    """A Trainer of momentum SGD with rate 0.1; `scheduler` makes a torch scheduler from the user's optimizer."""
    model = make_model(dropout)
    optimizer = optimizer(model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if scheduler is not None:
        options["schedule"] = scheduler(optimizer)
    return ht.Trainer(comm or SingleCommunicator(), model, optimizer, loss_fn, callbacks=list(callbacks), **options)


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


class Watch(ht.Callback):
    """Notes every hook, every rate and every loss."""

    def __init__(self):
        self.hooks, self.rates, self.losses, self.reports = [], [], [], []

    def fit_start(self, trainer):
        self.hooks.append(("fit_start", trainer.step))

    def step_end(self, trainer, report):
        self.hooks.append(("step_end", report.step))
        self.rates.append(report.lr[0])
        self.losses.append(report.loss)
        self.reports.append(report)

    def epoch_end(self, trainer, row):
        self.hooks.append(("epoch_end", row["epoch"]))

    def row_ready(self, trainer, row):
        self.hooks.append(("row_ready", row["epoch"]))

    def fit_end(self, trainer):
        self.hooks.append(("fit_end", trainer.step))


class StopAt(ht.Callback):
    """Ends the process's training at a step, as a kill would."""

    class Killed(Exception):
        pass

    def __init__(self, step):
        self._step = step

    def step_end(self, trainer, report):
        if report.step == self._step:
            raise self.Killed


def train_in_two_parts(make, stop_at, folder, every_steps=1, total=None, **fit):
    """Kill `make(callbacks)`'s run after step `stop_at`, resume it in a new Trainer; returns that and its watch."""
    first = make([ht.Checkpoint(folder, every_steps=every_steps), StopAt(stop_at)])
    try:
        first.fit(make_loader(first.comm), **fit)
    except StopAt.Killed:
        pass
    torch.manual_seed(999)  # whatever the new process has drawn by then
    watch = Watch()
    second = make([watch, ht.Checkpoint(folder)])
    history = second.fit(make_loader(second.comm), resume="auto", **fit)
    return second, watch, history
