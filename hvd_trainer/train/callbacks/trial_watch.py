"""Watches a run that is a trial of `hvd-trainer tune`: writes its progress and ends it at the target or a cap."""

from __future__ import annotations

import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch

from hvd_trainer.optim.layout import SAME_SIZE_INT
from hvd_trainer.train import trial
from hvd_trainer.train.callbacks.base import Callback
from hvd_trainer.train.callbacks.checkpoint import Checkpoint
from hvd_trainer.train.callbacks.evaluate import Evaluate
from hvd_trainer.train.callbacks.jsonl import JsonLines
from hvd_trainer.train.callbacks.noise_scale import NoiseScale
from hvd_trainer.train.callbacks.tensorboard import TensorBoard
from hvd_trainer.train.lr_range import as_row, lr_range_test
from hvd_trainer.train.trial import TrialEnded, TrialOrder, TrialRefused

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer

WRITERS = (Checkpoint, JsonLines, TensorBoard)
EVALUATIONS_PER_EPOCH = 32  # at most


def under_trial(callbacks: Sequence[Callback]) -> list[Callback]:
    """The callbacks of a Trainer; in a trial without those that write into the user's folders, and with a watch.

    Example:
        >>> under_trial([])
        []
    """
    order = trial.current()
    if order is None:
        return list(callbacks)
    kept = [callback for callback in callbacks if not isinstance(callback, WRITERS)]
    folders = [str(callback.store.folder) for callback in callbacks if isinstance(callback, Checkpoint)]
    return [*kept, TrialWatch(order, next((c for c in kept if isinstance(c, NoiseScale)), None), folders)]


class TrialWatch(Callback):
    """Evaluates at growing distances, decides from reduced values whether the trial is over, and writes events.

    Args:
        order: what the parent asked for.
        noise: the script's own measurement of the noise scale, if it has one.
        folders: of the script's checkpoints, for whoever trains with the result.
    """

    def __init__(self, order: TrialOrder, noise: Optional[NoiseScale] = None, folders: Sequence[str] = ()) -> None:
        self._order, self._folders = order, list(folders)
        self.outcome = ""
        self._measures = order.measure_noise and noise is None
        self._noise = noise or (NoiseScale(every_steps=1) if order.measure_noise else None)
        self._samples = self._losses_weight = 0
        self._losses_total, self._first_loss = 0.0, math.nan
        self._next_step, self._next_samples = 1, 0
        self._train_s, self._since_s = 0.0, 0.0
        self._steps_s: list[float] = []
        self._first_losses: list[float] = []
        self._begins_with: frozenset[tuple[str, int]] = frozenset()
        self._began_s = time.perf_counter()

    def fit_start(self, trainer: Trainer) -> None:
        if self._measures:
            self._noise.fit_start(trainer)
        optimizer, loader, order = trainer.optimizer, trainer.loader, self._order
        seen = {
            "global_batch": loader.plan.global_batch,
            "peak_lr": optimizer.peak_lr,
            "optimizer": type(optimizer.optimizer).__name__.lower(),
        }
        steps_per_epoch = loader.steps_per_epoch if isinstance(loader.steps_per_epoch, int) else None
        cores = trainer.comm.gather_objects(_affinity(), trainer.comm.unique_name("trial.cores"))
        self._write(
            trainer,
            "start",
            **seen,
            cores=cores,
            ranks=trainer.comm.size,
            rule=trainer.rule.name,
            lr_scale=optimizer.lr_scale,
            reference_batch=None if loader.plan.reference_batch is None else float(loader.plan.reference_batch),
            num_samples=getattr(loader, "num_samples", None),
            steps_per_epoch=steps_per_epoch,
            total_steps=trainer.total_steps,
            warmup_steps=trainer.learning_rate.timeline.warmup_steps,
            checkpoints=self._folders,
        )
        for name, wanted in order.expect.items():
            same = math.isclose(seen[name], wanted, rel_tol=1e-6) if isinstance(wanted, float) else seen[name] == wanted
            if not same:
                raise TrialRefused(
                    f"the trial set {order.fields}, but {name} of the run is {seen[name]!r}",
                    f"{wanted!r}",
                    "let main(comm, config) build its BatchPlan, its optimizer and their rate from these fields",
                )
        self._refuse_trained(trainer.model)
        self._least_samples = max(1, (getattr(loader, "num_samples", None) or 0) // EVALUATIONS_PER_EPOCH)
        if order.sweep:
            self._sweep(trainer)
        self._since_s = time.perf_counter()

    def _refuse_trained(self, model: torch.nn.Module) -> None:
        """A model that is kept outside of `main` would go on where the run before has ended, and be soonest at the target.

        Not what differs from the first run's beginning: that may follow from the batch. Only what is bit for bit as it was left.
        """
        self._begins_with = checksums(model)
        kept = [name for name, _ in self._begins_with & trial.left()]
        trial.leave(frozenset())
        if kept:
            raise TrialRefused(
                f"this run of the script begins with what the run before it has trained: {len(kept)} of {len(self._begins_with)} parameters, such as {min(kept)}",
                "a model that each call of main(comm, config) makes anew: several trials share a process",
                "make the model inside main, and not in the module, a cache or a default argument",
            )

    def _sweep(self, trainer: Trainer) -> None:
        """A range test in place of the training."""
        result = lr_range_test(
            trainer.model, trainer.optimizer, trainer.loss_fn, trainer.loader, autocast=trainer.autocast, scaler=trainer.scaler, **self._order.sweep
        )
        wall_s = time.perf_counter() - self._began_s
        self._write(trainer, "end", outcome="cap", step=len(result.rates), sweep=as_row(result), wall_s=wall_s)
        raise TrialEnded

    def row_ready(self, trainer: Trainer, row: dict[str, Any]) -> None:
        self._since_s = time.perf_counter()  # the script's own evaluation, at the end of an epoch, is no training

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        if self.outcome:
            return
        now_s = time.perf_counter()
        self._steps_s.append(now_s - self._since_s)
        self._train_s += now_s - self._since_s
        if self._measures:
            self._noise.step_end(trainer, report)
        self._samples += report.samples
        self._losses_total += report.loss * report.samples
        self._losses_weight += report.samples
        if report.step == 1:
            self._first_loss = abs(report.loss)
        if report.step <= self._order.num_losses:
            self._first_losses.append(report.loss)
        if not math.isfinite(report.loss) or abs(report.loss) > self._order.diverged_factor * self._first_loss:
            self._finish(trainer, "diverged", message=f"loss {report.loss:.4g} at step {report.step}, after {self._first_loss:.4g} at step 1")
            return
        order = self._order
        at_cap = report.step >= (order.max_steps or math.inf) or self._samples >= (order.max_samples or math.inf)
        if at_cap or trainer.is_last_step or (report.step >= self._next_step and self._samples >= self._next_samples):
            self._check(trainer, at_cap)
        self._since_s = time.perf_counter()

    def _check(self, trainer: Trainer, at_cap: bool) -> None:
        order, step = self._order, trainer.step
        self._next_step = max(step + 1, math.ceil(step * order.evaluate_growth))
        self._next_samples = self._samples + self._least_samples
        row = self._evaluated(trainer) if order.metric else {"step": step}
        self._losses_total, self._losses_weight = 0.0, 0
        train_s = trainer.comm.broadcast_object(self._train_s, name=trainer.comm.unique_name("trial.seconds"))
        now = self._noise.average.current().value if self._noise is not None and order.metric else None
        self._write(trainer, "check", **row, samples=self._samples, train_s=train_s, **({} if now is None else {"noise": now}))
        value = row.get(order.metric)
        if value is None:
            if at_cap or trainer.is_last_step or train_s >= (order.max_train_s or math.inf):
                self._finish(trainer, "cap" if at_cap or not trainer.is_last_step else "script_end")
            return
        if not math.isfinite(value):
            self._finish(trainer, "diverged", message=f"{order.metric} is {value} at step {step}")
        elif order.met(value):
            self._finish(trainer, "met", value=value)
        elif at_cap or train_s >= (order.max_train_s or math.inf):
            self._finish(trainer, "cap", value=value)
        elif trainer.is_last_step:
            self._finish(trainer, "script_end", value=value)

    def _evaluated(self, trainer: Trainer) -> dict[str, Any]:
        """The metrics at this step, as numbers."""
        row: dict[str, Any] = {"epoch": trainer.epoch + 1, "step": trainer.step, "loss": self._losses_total / self._losses_weight}
        for callback in trainer.callbacks:
            if isinstance(callback, Evaluate):
                callback.stopped(trainer, row)
        metric = self._order.metric
        if metric not in row:
            raise TrialRefused(
                f"the target is about {metric!r}, which the script does not measure",
                ", ".join(name for name in row if name not in ("epoch", "step")),
                f'one of these in --target; or ht.Evaluate(valid_set, metrics) that gives {metric!r}',
            )
        return {name: float(value) if getattr(value, "shape", None) == () else value for name, value in row.items()}

    def _finish(self, trainer: Trainer, outcome: str, **values: Any) -> None:
        self.outcome = outcome
        comm = trainer.comm
        steady = self._steps_s[self._order.warm_steps :] or self._steps_s[1:] or self._steps_s  # the first ones allocate
        if self._noise is not None:
            mean = self._noise.average.mean()
            values.update(noise_scale=mean.value, noise_low=mean.low, noise_high=mean.high, noise_reason=mean.reason)
        trial.leave(checksums(trainer.model) - self._begins_with)
        peaks = comm.gather_objects(peak_bytes(comm.device), comm.unique_name("trial.peaks"))
        self._write(
            trainer,
            "end",
            outcome=outcome,
            step=trainer.step,
            samples=self._samples,
            train_s=self._train_s,
            step_s=statistics.median(steady),
            spread_s=spread_s(steady),
            losses=self._first_losses,
            peak_bytes=max(peaks),
            wall_s=time.perf_counter() - self._began_s,
            **values,
        )
        trainer.stop()

    def _write(self, trainer: Trainer, event: str, **values: Any) -> None:
        if trainer.comm.rank == 0:
            self._order.write(event, **values)


def checksums(model: torch.nn.Module) -> frozenset[tuple[str, int]]:
    """The name and the sum of the bits of each parameter: equal where all values are, on all ranks and in any order of summation.

    Example:
        >>> layer = torch.nn.Linear(1, 1, bias=False)
        >>> torch.nn.init.constant_(layer.weight, 2.0).item(), sorted(checksums(layer)) == [("weight", 2**30)]
        (2.0, True)
    """
    known = [(name, p.detach()) for name, p in model.named_parameters() if not torch.nn.parameter.is_lazy(p) and p.layout == torch.strided and p.numel()]
    bits = [(torch.view_as_real(p) if p.is_complex() else p).contiguous().view(SAME_SIZE_INT[p.element_size() // (1 + p.is_complex())]).sum() for _, p in known]
    return frozenset(zip((name for name, _ in known), torch.stack(bits).tolist() if bits else ()))


def spread_s(steps_s: Sequence[float]) -> Optional[float]:
    """Seconds between the quartiles; None of fewer than four, which have none.

    Example:
        >>> spread_s([1.0, 2.0, 3.0, 4.0, 5.0]), spread_s([1.0, 2.0, 3.0])
        (2.0, None)
    """
    if len(steps_s) < 4:
        return None
    low, _, high = statistics.quantiles(steps_s, n=4, method="inclusive")
    return high - low


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process had at once so far: on a GPU the device's, else its own."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _affinity() -> list[int]:
    """The processors that this process may use, where the system says."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
