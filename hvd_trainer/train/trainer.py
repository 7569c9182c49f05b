"""`Trainer`: the loop, readable from top to bottom; everything that is not the loop is a callback or a function."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from hvd_trainer.checkpoint import rng
from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.derived import agree
from hvd_trainer.data.loader import Loader
from hvd_trainer.data.stream import StreamLoader
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.adascale import AdaScale
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.optim.scaling import RuleLike, scaling_rule
from hvd_trainer.optim.schedules import TorchSchedule
from hvd_trainer.train.arguments import check_fit, check_parts, checked_precision, checked_reduction, listed, num_steps
from hvd_trainer.train.callbacks.base import Callback
from hvd_trainer.train.callbacks.checkpoint import newest_checkpoint
from hvd_trainer.train.callbacks.trial_watch import TrialWatch, under_trial
from hvd_trainer.train.learning_rate import LearningRate, schedule_for
from hvd_trainer.train.plan_text import plan_text
from hvd_trainer.train.snapshot import resume_from
from hvd_trainer.train.step import train_step
from hvd_trainer.train.trial import TrialEnded
from hvd_trainer.values import Weighted, as_number, as_whole


@dataclass(frozen=True)
class StepReport:
    """What callbacks get to know about a step; the same on all ranks but for the times.

    Args:
        step: optimizer steps done, from 1.
        loss: exact mean over the global batch, before the update.
        lr: rate of each param group in this step.
        samples: of the global batch.
        samples_per_s: over all ranks, since the epoch began, on this rank's clock.
        grad_norm: of the averaged gradient before clipping; None without `clip_norm`.
    """

    step: int
    loss: float
    lr: list[float]
    samples: int
    samples_per_s: float
    grad_norm: Optional[float]


class Trainer:
    """Trains a model on all ranks of a job, with the numbers of one rank on the same global batches.

    Args:
        comm: from `ht.run` or `ht.init()`.
        model: on `comm.device`; rank 0's parameters and buffers are sent to all.
        optimizer: any torch optimizer, not wrapped; its rates are those for the reference batch.
        loss_fn: (model, data) -> Weighted(total, weight), or a plain scalar tensor with `loss_reduction`.
        lr_scaling: "linear", "sqrt", "none", a number, or a ScalingRule.
        schedule: a function of the step (factor of the peak), one of `ht.schedules`, or a torch scheduler made on `optimizer`.
        callbacks: run in this order.
        loss_reduction: "mean" or "sum" where the loss is a plain tensor; weighted by samples.
        clip_norm: clip the averaged gradient to this 2-norm.
        clip_value: clamp each component of the averaged gradient.
        reduction: how gradients travel and who updates, as arguments of `DistributedOptimizer`: `compression`,
            `reduce_through`, `update_by`, `bucket_bytes`, `overlap`.
        precision: "float32" (the model as it is), "bf16" or "fp16" (autocast; fp16 with a scaler whose skips are decided
            for all ranks at once); or torch's dtypes.

    Raises:
        ConfigError: no parameters, a model on another device, an optimizer that is wrapped already, a scheduler made on
            another optimizer, ...

    Example:
        >>> import torch, hvd_trainer as ht
        >>> comm = ht.init(engine="single")
        >>> data = [(torch.tensor([float(i)]), torch.tensor([2.0 * i])) for i in range(8)]
        >>> def loss_fn(model, batch):
        ...     x, y = batch
        ...     return ht.Weighted((model(x) - y).square().sum(), len(y))
        >>> model = torch.nn.Linear(1, 1)
        >>> trainer = ht.Trainer(comm, model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn)
        >>> history = trainer.fit(ht.Loader(data, ht.BatchPlan(4, 1), comm), epochs=2)
        plan  ...
        >>> [(row["epoch"], row["step"]) for row in history]
        [(1, 2), (2, 4)]
    """

    def __init__(
        self,
        comm: Communicator,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Callable,
        *,
        lr_scaling: RuleLike = "linear",
        schedule: Any = None,
        callbacks: Sequence[Callback] = (),
        loss_reduction: Optional[str] = None,
        clip_norm: Optional[float] = None,
        clip_value: Optional[float] = None,
        reduction: Optional[dict[str, Any]] = None,
        precision: str = "float32",
    ) -> None:
        callbacks = listed(callbacks)
        check_parts(comm, model, optimizer, loss_fn, callbacks)
        self.autocast = checked_precision(precision)
        self.scaler = GradScaler(comm.device.type) if self.autocast is torch.float16 else None
        self.comm, self.model, self.loss_fn = comm, model, loss_fn
        self.callbacks = under_trial(callbacks)
        self.rule = scaling_rule(lr_scaling)
        self.schedule = schedule_for(optimizer, schedule)
        self._schedule_counts = schedule is not None and not isinstance(self.schedule, TorchSchedule)
        self._user_optimizer = optimizer
        self._wrap_arguments = {
            "loss_reduction": loss_reduction,
            "clip_norm": as_number(clip_norm),
            "clip_value": as_number(clip_value),
            **checked_reduction(reduction or {}),
        }
        self.optimizer: Optional[DistributedOptimizer] = None
        self.loader: Union[Loader, StreamLoader, None] = None
        self.learning_rate: Optional[LearningRate] = None
        self.step = 0  # optimizer steps done since the first start
        self.total_steps: float = 0  # infinite where only the epochs are known
        self._total_epochs = math.inf
        self._is_stopped = False
        self.epoch = 0  # whole epochs done
        self.epoch_begin = 0  # the epoch under way began after so many steps
        self.epoch_loss = Weighted(0.0, 0.0)  # of the epoch under way
        self.history: list[dict[str, Any]] = []  # one row for every whole epoch

    @property
    def is_epoch_end(self) -> bool:
        return self.step > 0 and self.step == self.epoch_begin

    @property
    def is_last_step(self) -> bool:
        if isinstance(self.rule, AdaScale) and not self._is_stopped:
            return self.rule.is_done(self.total_steps)
        return self.step >= self.total_steps or self.epoch >= self._total_epochs

    def stop(self) -> None:
        """End the run after this step or epoch, as if it had been asked for no more; call it on all ranks.

        From `row_ready` it comes after other callbacks have written the row: what `Evaluate(every_epochs=...)` adds to the
        last row is then in the history and the checkpoint only. A callback's `wants_stop` comes before.
        """
        self.total_steps, self._is_stopped = self.step, True

    def fit(
        self, loader: Union[Loader, StreamLoader], epochs: Optional[int] = None, *, steps: Optional[int] = None, resume: Union[str, os.PathLike, None] = None
    ) -> list[dict[str, Any]]:
        """Train up to a number of epochs or steps, counted from the first start (a second call goes on).

            wrap the optimizer, send rank 0's model, resume                    callbacks: fit_start
            until the last step:
                for each global batch of the epoch, from where the run stands:
                    set the rates of this step
                    for each micro-batch: loss, backward                       buckets travel meanwhile
                    mean over all ranks, clip, update                          callbacks: step_end
                the epoch's row: loss, rate, samples/s                         callbacks: epoch_end, wants_stop, row_ready
            callbacks: fit_end (fit_failed where an error ended it)

        Args:
            loader: batches for this rank, from indices or from a stream.
            epochs: whole passes, >= 1. Give epochs or steps.
            steps: optimizer steps, >= 1; the run may end within an epoch.
            resume: None: start anew; "auto": from the newest checkpoint of the Checkpoint callbacks, if there is one;
                or a folder of ht.Checkpoint.

        Returns:
            A row for every epoch (epoch, step, loss, lr, samples_per_s, metrics); the last one may be of a part of one.

        Raises:
            ConfigError, CheckpointError, LossError, NonFiniteError: on all ranks.
        """
        check_fit(loader, resume)
        in_trial = isinstance(self.callbacks[-1] if self.callbacks else None, TrialWatch)
        resume = None if in_trial else resume  # a trial of `tune` begins at the beginning
        total_steps = num_steps(loader, epochs, steps)
        if total_steps == math.inf and self._schedule_counts:
            raise ConfigError(
                f"fit(epochs={epochs}) with a schedule and a stream whose length is not known",
                "a number of steps: the schedule's length depends on it",
                "fit(steps=...), or StreamLoader(steps_per_epoch=...)",
            )
        if self.loader is None:
            self._begin(loader, total_steps, resume)
        elif loader is not self.loader:
            raise ConfigError("fit() was called again with another loader", "the same loader", "make a new Trainer for other data")
        self.total_steps, self._is_stopped = total_steps, False
        self._total_epochs = as_whole(epochs) if total_steps == math.inf else math.inf
        self.learning_rate.set_length(total_steps)
        try:
            history = self._loop()
            self.optimizer.release()  # what a rank does with its model now is its own affair
            if in_trial:
                raise TrialEnded
            return history
        except BaseException:
            for callback in self.callbacks:
                with contextlib.suppress(Exception):
                    callback.fit_failed(self)
            raise

    def _loop(self) -> list[dict[str, Any]]:
        for callback in self.callbacks:
            callback.fit_start(self)
        self.comm.say(plan_text(self))
        if self.is_last_step and self.step:
            self.comm.say(
                f"nothing left to do: {self.step} steps are done, {self.total_steps} were asked for "
                "(more epochs, another checkpoint folder, or no resume= trains again)"
            )
        part_row: list[dict[str, Any]] = []
        if not self.model.training:  # one in training mode stays as it is: parts of it may be frozen by eval()
            self.model.train()
        # A run that was stopped in mid-epoch and has nothing left to do still owes the row of that part.
        while not self.is_last_step or not (self.is_epoch_end or part_row):
            row = self._train_epoch()
            # The last row has all columns before it is written, also where the run turns out to end with it.
            with self._tell_if_stopped(row):
                for callback in self.callbacks:
                    callback.epoch_end(self, row)
                row.update({name: value.item() for name, value in row.items() if getattr(value, "shape", None) == ()})  # Python's numbers
                if any([callback.wants_stop(self, row) for callback in self.callbacks]):  # a list: each of them counts rows
                    self.stop()
            if self.is_epoch_end:
                self.history.append(row)
                self.epoch_loss = Weighted(0.0, 0.0)
                if self.is_last_step:  # known only now where a stream ended or the run was stopped
                    self.learning_rate.set_length(self.step)
                self.learning_rate.after_step(self.step, row)
            else:
                part_row = [row]
            with self._tell_if_stopped(row):
                for callback in self.callbacks:
                    callback.row_ready(self, row)
        for callback in self.callbacks:
            callback.fit_end(self)
        return self.history + part_row

    @contextlib.contextmanager
    def _tell_if_stopped(self, row: dict[str, Any]) -> Iterator[None]:
        """Where the block ends the run, callbacks may add what they left out of the row because the run went on."""
        was_last = self.is_last_step
        yield
        if self.is_last_step and not was_last:
            for callback in self.callbacks:
                callback.stopped(self, row)

    def _train_epoch(self) -> dict[str, Any]:
        """The rest of the current epoch, or what `total_steps` leaves of it."""
        epoch, first_step = self.epoch, self.step - self.epoch_begin
        samples, samples_per_s, started_s = 0, 0.0, time.perf_counter()
        lr = self.learning_rate.current()
        fill_up = any(getattr(module, "needs_every_rank", False) for module in self.model.modules())
        # A batch that is taken is trained on: a stream cannot be asked for it again.
        batches = () if self.is_last_step else self.loader.epoch(epoch, first_step, fill_up=fill_up)
        for batch in batches:
            self.comm.where = f"step {self.step + 1} (epoch {epoch + 1})"
            self.learning_rate.apply(self.step)
            loss = train_step(self.model, self.loss_fn, batch, self.optimizer, self.autocast, self.scaler)
            self.step += 1
            if batch.is_last:
                self.epoch, self.epoch_begin = self.epoch + 1, self.step
            samples += batch.global_samples
            samples_per_s = samples / (time.perf_counter() - started_s)
            self.epoch_loss = self.epoch_loss + loss
            lr = self.learning_rate.current()
            report = StepReport(self.step, loss.mean, lr, batch.global_samples, samples_per_s, self.optimizer.last_grad_norm)
            if not self.is_epoch_end:
                self.learning_rate.after_step(self.step, None)
            for callback in self.callbacks:
                callback.step_end(self, report)
            if self.is_last_step:
                break
        return {"epoch": epoch + 1, "step": self.step, "loss": self.epoch_loss.mean, "lr": lr[0], "samples_per_s": samples_per_s}

    def _begin(self, loader: Loader, total_steps: int, resume: Optional[str]) -> None:
        self.loader = loader
        agree(self.comm, (total_steps, resume, self.rule.name), "length of the run, resume and lr_scaling")
        self.optimizer = DistributedOptimizer(
            self._user_optimizer,
            self.comm,
            lr_scaling=self.rule,
            plan=loader.plan,
            model=self.model,
            scheduler_is_rebased=isinstance(self.schedule, TorchSchedule),
            **self._wrap_arguments,
        )
        self.learning_rate = LearningRate(self.optimizer, self.schedule, loader.steps_per_epoch, total_steps)
        path = newest_checkpoint(self.callbacks, self.comm) if resume == "auto" else resume
        if path is not None:
            resume_from(path, self)
        elif self.comm.rank > 0:
            # Scripts seed all ranks alike to build the same model; with that, all would draw the same dropout masks.
            rng.reseed(self.loader.seed, self.step, self.comm.rank)
