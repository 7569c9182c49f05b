"""`Trainer`: the loop, readable from top to bottom; everything that is not the loop is a callback or a function."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from hvd_trainer.checkpoint import rng
from hvd_trainer.checkpoint.recipe import check_resume, describe_model, describe_recipe
from hvd_trainer.checkpoint.store import load
from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.derived import agree
from hvd_trainer.comm.on_root import on_root
from hvd_trainer.data.loader import Loader
from hvd_trainer.data.stream import StreamLoader
from hvd_trainer.errors import CheckpointError, ConfigError
from hvd_trainer.log import say, warn
from hvd_trainer.optim.adascale import AdaScale
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.optim.rates import REFERENCE
from hvd_trainer.optim.replicas import replica_check
from hvd_trainer.optim.scaling import RuleLike, scaling_rule
from hvd_trainer.optim.schedules import TorchSchedule, as_schedule
from hvd_trainer.train.callbacks.base import Callback
from hvd_trainer.train.callbacks.checkpoint import Checkpoint
from hvd_trainer.train.callbacks.trial_watch import TrialWatch, under_trial
from hvd_trainer.train.callbacks.warmup import Warmup
from hvd_trainer.train.learning_rate import LearningRate
from hvd_trainer.train.plan_text import plan_text
from hvd_trainer.train.step import train_step
from hvd_trainer.train.trial import TrialEnded
from hvd_trainer.values import Weighted, as_number, as_whole

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
ALIASES = {"fp32": "float32", "torch.float32": "float32", "bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "torch.float16": "fp16"}
# Arguments of DistributedOptimizer that say how gradients travel and who updates.
REDUCTION = {"compression", "reduce_through", "update_by", "bucket_bytes", "overlap"}


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
        ConfigError: no parameters, a model on another device, an optimizer that is wrapped already, ...

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
        callbacks = _listed(callbacks)
        _check_parts(comm, model, optimizer, loss_fn, callbacks)
        precision = ALIASES.get(str(precision), precision)
        if not isinstance(precision, str) or precision not in PRECISIONS:
            raise ConfigError(f"precision={precision!r}", ", ".join(PRECISIONS), 'precision="bf16"')
        self._autocast = PRECISIONS[precision]
        self._scaler = GradScaler(comm.device.type) if precision == "fp16" else None
        self.comm, self.model, self.loss_fn = comm, model, loss_fn
        self.callbacks = under_trial(callbacks)
        self.rule = scaling_rule(lr_scaling)
        self._schedule = as_schedule(schedule)
        self._schedule_counts = schedule is not None and not isinstance(self._schedule, TorchSchedule)
        self._user_optimizer = optimizer
        self._wrap_arguments = {
            "loss_reduction": loss_reduction,
            "clip_norm": as_number(clip_norm),
            "clip_value": as_number(clip_value),
            **_checked_reduction(reduction or {}),
        }
        self.optimizer: Optional[DistributedOptimizer] = None
        self.loader: Union[Loader, StreamLoader, None] = None
        self.learning_rate: Optional[LearningRate] = None
        self.step = 0  # optimizer steps done since the first start
        self.total_steps: float = 0  # infinite where only the epochs are known
        self._total_epochs = math.inf
        self._is_stopped = False
        self._epochs_done = self._epoch_begin = 0  # the epoch under way began after so many steps
        self.history: list[dict[str, Any]] = []  # one row for every whole epoch
        self._epoch_loss = Weighted(0.0, 0.0)

    @property
    def epoch(self) -> int:
        """Whole epochs done."""
        return self._epochs_done

    @property
    def is_epoch_end(self) -> bool:
        return self.step > 0 and self.step == self._epoch_begin

    @property
    def is_last_step(self) -> bool:
        if isinstance(self.rule, AdaScale) and not self._is_stopped:
            return self.rule.is_done(self.total_steps)
        return self.step >= self.total_steps or self._epochs_done >= self._total_epochs

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
        _check_fit(loader, resume)
        in_trial = isinstance(self.callbacks[-1] if self.callbacks else None, TrialWatch)
        resume = None if in_trial else resume  # a trial of `tune` begins at the beginning
        total_steps = _total_steps(loader, epochs, steps)
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
            self._complete(row)
            if self.is_epoch_end:
                self.history.append(row)
                self._epoch_loss = Weighted(0.0, 0.0)
                if self.is_last_step:  # known only now where a stream ended or the run was stopped
                    self.learning_rate.set_length(self.step)
                self.learning_rate.after_step(self.step, row)
            else:
                part_row = [row]
            was_last = self.is_last_step
            for callback in self.callbacks:
                callback.row_ready(self, row)
            self._after_stop(was_last, row)
        for callback in self.callbacks:
            callback.fit_end(self)
        return self.history + part_row

    def _complete(self, row: dict[str, Any]) -> None:
        """All columns of a row, as Python's numbers; the last row has all, also where the run turns out to end with it."""
        was_last = self.is_last_step
        for callback in self.callbacks:
            callback.epoch_end(self, row)
        row.update({name: value.item() for name, value in row.items() if getattr(value, "shape", None) == ()})
        if any([callback.wants_stop(self, row) for callback in self.callbacks]):  # a list: each of them counts rows
            self.stop()
        self._after_stop(was_last, row)

    def _after_stop(self, was_last: bool, row: dict[str, Any]) -> None:
        if self.is_last_step and not was_last:
            for callback in self.callbacks:
                callback.stopped(self, row)

    def _train_epoch(self) -> dict[str, Any]:
        """The rest of the current epoch, or what `total_steps` leaves of it."""
        epoch, first_step = self._epochs_done, self.step - self._epoch_begin
        samples, samples_per_s, started_s = 0, 0.0, time.perf_counter()
        lr = self.learning_rate.current()
        fill_up = any(getattr(module, "needs_every_rank", False) for module in self.model.modules())
        # A batch that is taken is trained on: a stream cannot be asked for it again.
        batches = () if self.is_last_step else self.loader.epoch(epoch, first_step, fill_up=fill_up)
        for batch in batches:
            self.comm.where = f"step {self.step + 1} (epoch {epoch + 1})"
            self.learning_rate.apply(self.step)
            loss = train_step(self.model, self.loss_fn, batch, self.optimizer, self._autocast, self._scaler)
            self.step += 1
            if batch.is_last:
                self._epochs_done, self._epoch_begin = self._epochs_done + 1, self.step
            samples += batch.global_samples
            samples_per_s = samples / (time.perf_counter() - started_s)
            self._epoch_loss = self._epoch_loss + loss
            lr = self.learning_rate.current()
            report = StepReport(self.step, loss.mean, lr, batch.global_samples, samples_per_s, self.optimizer.last_grad_norm)
            if not self.is_epoch_end:
                self.learning_rate.after_step(self.step, None)
            for callback in self.callbacks:
                callback.step_end(self, report)
            if self.is_last_step:
                break
        return {"epoch": epoch + 1, "step": self.step, "loss": self._epoch_loss.mean, "lr": lr[0], "samples_per_s": samples_per_s}

    # -- start and resume -------------------------------------------------------------------------------------------

    def _begin(self, loader: Loader, total_steps: int, resume: Optional[str]) -> None:
        self.loader = loader
        agree(self.comm, (total_steps, resume, self.rule.name), "length of the run, resume and lr_scaling")
        self.optimizer = DistributedOptimizer(
            self._user_optimizer,
            self.comm,
            lr_scaling=self.rule,
            plan=loader.plan,
            model=self.model,
            scheduler_is_rebased=isinstance(self._schedule, TorchSchedule),
            **self._wrap_arguments,
        )
        self.learning_rate = LearningRate(self.optimizer, self._schedule, loader.steps_per_epoch, total_steps)
        path = self._resume_path(resume)
        if path is not None:
            self._resume(path)
        elif self.comm.rank > 0:
            # Scripts seed all ranks alike to build the same model; with that, all would draw the same dropout masks.
            rng.reseed(self.loader.seed, self.step, self.comm.rank)

    def _resume_path(self, resume: Optional[str]) -> Optional[str]:
        if resume != "auto":
            return resume
        stores = [callback.store for callback in self.callbacks if isinstance(callback, Checkpoint)]
        if not stores:
            raise ConfigError('resume="auto" without ht.Checkpoint among the callbacks', "a Checkpoint, which says where", 'ht.Checkpoint("runs/a")')

        def newest() -> Optional[str]:
            found = [path for path in (store.latest() for store in stores) if path is not None]
            return str(max(found, key=lambda path: path.name)) if found else None  # names rise with the steps

        return on_root(self.comm, newest, self.comm.unique_name("resume.find"))

    def _resume(self, path: str) -> None:
        def read() -> dict[str, Any]:
            state, manifest = load(path)
            check_resume(manifest, self.model, self.loader, self._recipe_extras(), path)
            saved, mine = (_group_sizes(groups) for groups in (state["optimizer"]["param_groups"], self.optimizer.param_groups))
            if saved != mine:
                raise CheckpointError(
                    f"{path} has param groups of {saved} tensors, this run's optimizer has {mine}",
                    "the groups that were saved",
                    "make the optimizer with the same groups, or start anew in another folder",
                )
            return state

        # Rank 0 reads and every rank loads the same bytes; nothing is broadcast piece by piece afterwards.
        state = on_root(self.comm, read, self.comm.unique_name("resume.read"))
        given, given_options = [group[REFERENCE] for group in self.optimizer.param_groups], self._group_options()
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        kept = [group[REFERENCE] for group in self.optimizer.param_groups]
        if kept != given:
            warn(f"note: the learning rates {given} of this start are not used; the checkpoint goes on with {kept}", rank=self.comm.rank)
        changed = [f"{name}={mine[name]!r} (goes on with {saved[name]!r})" for mine, saved in zip(given_options, self._group_options())
                   for name in mine if repr(mine[name]) != repr(saved[name])]  # fmt: skip
        if changed:
            warn(f"note: the optimizer's {', '.join(dict.fromkeys(changed))} of this start is not used", rank=self.comm.rank)
        self.learning_rate.load_state_dict(state["schedule"])
        if self._scaler and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self.step, self.history = state["step"], state["history"]
        self._epochs_done, self._epoch_begin = state["epochs"]
        self._epoch_loss = Weighted(*state["epoch_loss"])
        for key, callback in _named(self.callbacks):
            if key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][key])
        if isinstance(self.loader, StreamLoader):
            self.loader.load_state_dict(state["stream"][self.comm.rank % len(state["stream"])])  # without shards all are the same
        if len(state["rng"]) == self.comm.size:
            rng.set_rng_state(state["rng"][self.comm.rank], self.comm.device)
        else:
            rng.reseed(self.loader.seed, self.step, self.comm.rank)
        replica_check(self.model, self.comm)
        say(f"resumed from {path} at step {self.step}", rank=self.comm.rank)

    def _recipe_extras(self) -> dict[str, str]:
        """What else a resume may not change, as the names that a message can show."""
        return {
            "lr_scaling": self.rule.name,
            "schedule": self._schedule.kind,
            "optimizer": type(self._user_optimizer).__name__,
            "warmup": next((callback.describe(self.loader) for callback in self.callbacks[::-1] if isinstance(callback, Warmup)), "none"),
        }

    def _group_options(self) -> list[dict[str, Any]]:
        """Momentum, weight decay, ... of each param group; without the momentum where a scheduler moves it."""
        names = [name for name in self.optimizer.defaults if name != "lr"]
        groups = self.optimizer.param_groups
        return [{n: g.get(n) for n in names if not ("max_momentum" in g and n in ("momentum", "betas"))} for g in groups]

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """State and manifest of the run as it stands; call on all ranks (their random states are gathered)."""
        states = self.comm.gather_objects(rng.get_rng_state(self.comm.device), self.comm.unique_name("rng"))
        stream = self.loader.state_dict() if isinstance(self.loader, StreamLoader) else None
        state = {
            "step": self.step,
            "epochs": [self._epochs_done, self._epoch_begin],
            "stream": self.comm.gather_objects(stream, self.comm.unique_name("stream.state")),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.learning_rate.state_dict(),
            "epoch_loss": [float(self._epoch_loss.total), float(self._epoch_loss.weight)],
            "history": self.history,
            "callbacks": {key: callback.state_dict() for key, callback in _named(self.callbacks)},
            "rng": states,
            "scaler": self._scaler.state_dict() if self._scaler else {},
        }
        manifest = {
            "model": describe_model(self.model),
            "recipe": {**describe_recipe(self.loader, self.optimizer.reference_batch), **self._recipe_extras()},
            "torch": torch.__version__,
        }
        return state, manifest


def _group_sizes(groups: Sequence[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _named(callbacks: Sequence[Callback]) -> list[tuple[str, Callback]]:
    """`Name`, `Name.1`, ...: keys that do not depend on the order of different callbacks."""
    counts: dict[str, int] = {}
    named = []
    for callback in callbacks:
        name = type(callback).__name__
        number = counts.get(name, 0)
        counts[name] = number + 1
        named.append((f"{name}.{number}" if number else name, callback))
    return named


def _check_fit(loader: Any, resume: Any) -> None:
    if not isinstance(loader, (Loader, StreamLoader)):
        is_torch = isinstance(loader, torch.utils.data.DataLoader)
        fix = "ht.Loader.from_dataloader(dataloader, comm)" if is_torch else "ht.Loader(dataset, ht.BatchPlan(...), comm)"
        raise ConfigError(f"fit({type(loader).__name__})", "an ht.Loader or ht.StreamLoader: it gives each rank its share", fix)
    if resume is not None and not isinstance(resume, (str, os.PathLike)):
        raise ConfigError(f"fit(resume={resume!r})", 'None, "auto", or a folder of ht.Checkpoint', 'resume="auto"; to start anew leave it out')


def _total_steps(loader: Union[Loader, StreamLoader], epochs: Optional[int], steps: Optional[int]) -> float:
    if (epochs is None) == (steps is None):
        raise ConfigError(f"fit(epochs={epochs}, steps={steps})", "one of the two", "trainer.fit(loader, epochs=20)")
    name, value = ("epochs", epochs) if steps is None else ("steps", steps)
    whole = as_whole(value)
    if whole is None or whole < 1:
        raise ConfigError(f"fit({name}={value!r})", "a whole number >= 1", f"{name}=20")
    if steps is not None:
        return whole
    return whole * loader.steps_per_epoch if isinstance(loader.steps_per_epoch, int) else math.inf


def _listed(callbacks: Any) -> list:
    if isinstance(callbacks, (Callback, str)) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"Trainer(callbacks={callbacks!r})", "a list of callbacks", "callbacks=[ht.Progress()], or leave it out")
    return list(callbacks)


def _check_parts(comm: Any, model: Any, optimizer: Any, loss_fn: Any, callbacks: Any) -> None:
    if not isinstance(comm, Communicator):
        raise ConfigError(f"Trainer(comm={type(comm).__name__})", "what ht.init() returns or ht.run passes to main", "comm = ht.init()")
    if not isinstance(model, torch.nn.Module) or not any(True for _ in model.parameters()):
        raise ConfigError(f"the model ({type(model).__name__}) has no parameters", "a torch.nn.Module with parameters", "check how it is built")
    wrong = next((p.device for p in model.parameters() if p.device != comm.device), None)
    if wrong is not None:
        raise ConfigError(f"the model is on {wrong}, this rank's device is {comm.device}", "the same device", "model.to(comm.device) before making the optimizer")
    if isinstance(optimizer, DistributedOptimizer) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"Trainer(optimizer={type(optimizer).__name__})", "a torch optimizer, not wrapped", "the Trainer wraps it; pass torch.optim.SGD(...)")
    if not callable(loss_fn):
        raise ConfigError(f"Trainer(loss_fn={loss_fn!r})", "a function (model, data) -> ht.Weighted", "pass the function itself")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callback {callback!r}", "objects of ht.Callback classes", "an object, not the class: ht.Progress()")


def _checked_reduction(reduction: dict[str, Any]) -> dict[str, Any]:
    unknown = set(reduction) - REDUCTION
    if unknown:
        raise ConfigError(f"reduction={reduction!r}", ", ".join(sorted(REDUCTION)), 'reduction={"compression": "bf16"}')
    return dict(reduction)
