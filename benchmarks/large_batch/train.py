"""Trains one cell with ht.Trainer and says how it ended."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hvd_trainer as ht
from benchmarks.large_batch.cells import CAP, DIVERGED, DIVERGED_AT, GROWTH, MET, Cell

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import fashion_mlp  # noqa: E402

KEPT_LOSSES = 50  # of runs that are no longer; the curves of the grid are the looks at the validation set
CHECK_BATCH = 2500  # samples in one forward pass of an evaluation


@dataclass(frozen=True)
class Task:
    """Model, data and target.

    Args:
        make: a new model.
        train, valid: images and labels.
        target: the mean validation loss to be reached.
    """

    make: Callable[[], nn.Module]
    train: tuple[torch.Tensor, torch.Tensor]
    valid: tuple[torch.Tensor, torch.Tensor]
    target: float


@functools.cache
def task(model: str, folder: str, target: float, num_valid: int) -> Task:
    """The data in memory.

    Args:
        model: "mlp" or "cnn".
        folder: of the IDX files.
        target: validation loss.
        num_valid: samples of the validation set that are looked at.
    """
    train, valid = fashion_mlp.read_train(folder)
    return Task({"mlp": fashion_mlp.mlp, "cnn": cnn}[model], train, tuple(part[:num_valid] for part in valid), target)


def cnn() -> nn.Module:
    """That of examples/fashion_mnist.py without its batch normalisation, which makes a sample's gradient depend on the others."""

    def block(channels_in: int, channels_out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 16), *block(16, 32), *block(32, 64), nn.Flatten(), nn.Linear(576, 10))


class Watch(ht.Callback):
    """Looks at the validation set at growing distances, and ends the run at the target, at divergence or at the cap.

    Args:
        cell: what is trained.
        the_task: how far to go, and on what to look.
    """

    def __init__(self, cell: Cell, the_task: Task) -> None:
        self._cell, self._task = cell, the_task
        self._loss = fashion_mlp.losses_of(*the_task.valid)
        self.outcome, self.checks, self.losses, self.steps_s = CAP, [], [], []
        self.check_s, self._next, self._since_s, self._first_loss = 0.0, cell.first_check, 0.0, math.nan

    def fit_start(self, trainer: ht.Trainer) -> None:
        self._first_loss = self._look(trainer)
        self._since_s = time.perf_counter()

    def step_end(self, trainer: ht.Trainer, report: Any) -> None:
        begin_s = time.perf_counter()
        self.steps_s.append(begin_s - self._since_s)
        self.losses.append(report.loss)
        if not math.isfinite(report.loss) or report.loss > DIVERGED_AT * self._first_loss:
            self.outcome = DIVERGED
            trainer.stop()
        elif report.step >= self._next or trainer.is_last_step:
            self._next = max(report.step + 1, math.floor(report.step * GROWTH))
            value = self._look(trainer)
            self.checks.append((report.step, round(value, 6)))
            if not value <= self._task.target:
                diverged = not math.isfinite(value) or value > DIVERGED_AT * self._first_loss
                self.outcome = DIVERGED if diverged else CAP
            else:
                self.outcome = MET
            if self.outcome != CAP:
                trainer.stop()
            self.check_s += time.perf_counter() - begin_s
        self._since_s = time.perf_counter()

    def _look(self, trainer: ht.Trainer) -> float:
        found = ht.evaluate(trainer.model, range(len(self._task.valid[1])), {"loss": self._loss}, trainer.comm, batch_size=CHECK_BATCH)
        return float(found["loss"])


def make_trainer(cell: Cell, the_task: Task, comm: Any, callbacks: list) -> tuple[ht.Trainer, ht.Loader]:
    """The Trainer of a cell: weights and order are functions of its seed, its rate is the peak as it is."""
    torch.manual_seed(cell.seed)
    model = the_task.make()
    settings = {"momentum": cell.momentum} if cell.momentum else {}
    optimizer = ht.make_optimizer(cell.optimizer, model, lr=cell.lr, **settings)
    loader = ht.Loader(range(len(the_task.train[1])), ht.BatchPlan(cell.batch, comm.size, micro_batch=cell.micro_batch), comm, seed=cell.seed)
    if cell.warmup_samples:
        callbacks = [ht.Warmup(samples=cell.warmup_samples, start_factor=cell.warmup_from), *callbacks]
    return ht.Trainer(comm, model, optimizer, fashion_mlp.losses_of(*the_task.train), lr_scaling="none", callbacks=callbacks), loader


def run(cell: Cell, the_task: Task, comm: Any) -> dict[str, Any]:
    """Train a cell.

    Args:
        cell: what.
        the_task: model and data.
        comm: of one rank, or of as many as the cell asks for.

    Returns:
        The cell's fields; outcome, steps; gap (how many steps before the last one was the look before, as a share);
        the looks, the first 50 losses, seconds of training and of looking, the median step, and the noise scale.
    """
    begin_s = time.perf_counter()
    watch, noise = Watch(cell, the_task), ht.NoiseScale()
    trainer, loader = make_trainer(cell, the_task, comm, [*([noise] if cell.noise else []), watch])
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            trainer.fit(loader, steps=cell.cap)
        except ht.errors.NonFiniteError:
            watch.outcome = DIVERGED
    steps = trainer.step
    before = watch.checks[-2][0] if len(watch.checks) > 1 else None
    found = {
        **asdict(cell),
        "outcome": watch.outcome,
        "steps": steps,
        "gap": None if before is None else (steps - before) / steps,
        "value": watch.checks[-1][1] if watch.checks else None,
        "checks": watch.checks,
        "losses": watch.losses if cell.cap <= KEPT_LOSSES else [],
        "train_s": sum(watch.steps_s),
        "check_s": watch.check_s,
        "wall_s": time.perf_counter() - begin_s,
        "step_s": statistics.median(watch.steps_s) if watch.steps_s else None,
    }
    if cell.noise:
        mean, now = noise.average.mean(), noise.average.current()
        found["noise_scale"] = {"mean": mean.value, "low": mean.low, "high": mean.high, "at_end": now.value, "text": str(mean)}
        found["noise_windows"] = [
            (w.first_step + w.num_steps / 2, w.noise[-1] / w.signal[-1] if w.signal[-1] > 0 else None) for w in noise.average.windows
        ]
    return found
