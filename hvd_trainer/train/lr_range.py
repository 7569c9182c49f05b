"""The learning-rate range test: the rate rises at every step, the reduced loss says where it helps and where it breaks.

All ranks see the same, reduced losses and so stop at the same step. Afterwards the run is where it was: parameters, buffers,
optimizer, random states.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import numpy as np
import torch

from hvd_trainer.checkpoint import rng
from hvd_trainer.data.loader import Loader
from hvd_trainer.data.step_batch import StepBatch
from hvd_trainer.data.stream import StreamLoader
from hvd_trainer.errors import ConfigError, NonFiniteError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.optim.noise_average import RunningAverage
from hvd_trainer.optim.rates import get_rate, set_rate
from hvd_trainer.train.step import train_step

SMOOTHING = 0.9  # of the loss that decides when to stop


@dataclass(frozen=True)
class Suggestion:
    """What a curve of losses over rates says.

    Args:
        rate: where the loss falls fastest per factor of the rate; None where it falls nowhere.
        lowest: where the loss is lowest: constant rates above it are likely to diverge.
        note: what to do about a curve that says little; "" for a good one.
    """

    rate: Optional[float]
    lowest: float
    note: str = ""


@dataclass(frozen=True)
class RangeTest:
    """The rates that were tried, in order, and what came of it.

    Args:
        rates: of the first param group.
        losses: exact means over the global batches, before each update.
        stopped: "diverged", "not finite", or "" where all rates were tried.
        suggestion: see `suggest_rate`.
    """

    rates: list[float] = field(repr=False)
    losses: list[float] = field(repr=False)
    stopped: str
    suggestion: Suggestion


def suggest_rate(rates: Sequence[float], losses: Sequence[float], window: int = 3) -> Suggestion:
    """The rate where the loss falls fastest, per factor of the rate: the slope against log(rate).

    Only up to the rate of the lowest loss. Against the rate itself the slope of an exponential sweep is divided by the rate, so the steepest place is far too early.
    Each slope is a line fitted to `window` points around its rate, which does not lag behind as a running average does.

    Args:
        rates: > 0, rising.
        losses: one for each, finite.
        window: odd, >= 3; as many points go into one slope.

    Raises:
        ConfigError: fewer points than the window, rates that do not rise, or another window.

    Example:
        >>> rates = [10 ** (exponent / 4) for exponent in range(-16, 1)]
        >>> losses = [2 - 1 / (1 + math.exp(-3 * (math.log10(rate) + 2))) for rate in rates]      # steepest at 0.01
        >>> round(suggest_rate(rates, losses).rate, 4)
        0.01

    Source: Smith 2017, arXiv 1506.01186, section 3.3.
    """
    if not (window % 2 == 1 and window >= 3):
        raise ConfigError(f"suggest_rate(window={window!r})", "an odd number >= 3", "window=3")
    if len(rates) != len(losses) or len(rates) < window:
        raise ConfigError(f"{len(rates)} rates and {len(losses)} losses", f"as many of both, at least {window}", "more steps, or a lower first rate")
    logs, values = np.log(np.asarray(rates, dtype=float)), np.asarray(losses, dtype=float)
    if not (np.diff(logs) > 0).all() or not np.isfinite(values).all():
        raise ConfigError("rates that do not rise, or losses that are not finite", "rising rates > 0, finite losses", "drop what came after divergence")
    x, y = (np.lib.stride_tricks.sliding_window_view(each, window) for each in (logs, values))
    x = x - x.mean(1, keepdims=True)
    slopes, means = (x * y).sum(1) / (x * x).sum(1), y.mean(1)
    centres = np.asarray(rates, dtype=float)[window // 2 : len(rates) - window // 2]
    lowest = int(means.argmin())
    # Beyond its lowest point the loss jumps and falls again, more steeply than training ever does.
    steepest = int(slopes[: lowest + 1].argmin())
    if not slopes[steepest] < 0:
        return Suggestion(None, float(centres[lowest]), "the loss falls nowhere: begin at a lower rate, or look at the data")
    note = ""
    if steepest == 0:
        note = "the loss falls fastest at the lowest rate: begin lower"
    elif lowest == len(centres) - 1:
        note = "the loss still falls at the highest rate: end higher"
    return Suggestion(float(centres[steepest]), float(centres[lowest]), note)


def lr_range_test(
    model: torch.nn.Module,
    optimizer: DistributedOptimizer,
    loss_fn: Callable,
    loader: Union[Loader, StreamLoader],
    *,
    lowest: float = 1e-6,
    highest: float = 10.0,
    num_steps: int = 100,
    diverged_at: float = 4.0,
    autocast: Optional[torch.dtype] = None,
    scaler: Optional[GradScaler] = None,
) -> RangeTest:
    """Train a few steps with a rate that rises by the same factor at each, then put everything back.

    To be run at the largest batch that is considered: rules scale down from there safely, and not up. A collective.

    Args:
        model: on the ranks' device.
        optimizer: wrapped; its rates are replaced meanwhile, other groups keep their ratio to the first one's.
        loss_fn: as for `ht.Trainer`.
        loader: read from its first epoch on, again and again where it is short.
        lowest, highest: rates of the first and the last step, 0 < lowest < highest.
        num_steps: >= 5.
        diverged_at: stop where the smoothed loss is this many times the best (or rose by as much as it fell, times this
            less one, if that is more).
        autocast: as in `train_step`.
        scaler: for float16.

    Returns:
        A RangeTest, the same on all ranks.

    Raises:
        ConfigError: an argument is out of range, or the very first losses are not finite.
    """
    if not (0 < lowest < highest < math.inf and num_steps >= 5 and diverged_at > 1):
        raise ConfigError(
            f"lr_range_test(lowest={lowest!r}, highest={highest!r}, num_steps={num_steps!r}, diverged_at={diverged_at!r})",
            "0 < lowest < highest, at least 5 steps, diverged_at > 1",
            "leave them out",
        )
    sweep = [lowest * (highest / lowest) ** (step / (num_steps - 1)) for step in range(num_steps)]
    losses: list[float] = []
    smoothed, best, stopped = RunningAverage(SMOOTHING), math.inf, ""
    with put_back(model, optimizer, scaler):
        shares = [get_rate(group) for group in optimizer.param_groups]
        shares = [share / shares[0] if shares[0] else 1.0 for share in shares]
        if not model.training:  # one in training mode stays as it is: parts of it may be frozen by eval()
            model.train()
        fill_up = any(getattr(module, "needs_every_rank", False) for module in model.modules())
        for rate, batch in zip(sweep, _batches(loader, fill_up)):
            for group, share in zip(optimizer.param_groups, shares):
                set_rate(group, rate * share)
            try:
                loss = train_step(model, loss_fn, batch, optimizer, autocast, scaler).mean
            except NonFiniteError:  # found in the reduced value: on all ranks
                stopped = "not finite"
                break
            losses.append(loss)
            smoothed.add([loss])
            best = min(best, smoothed.mean[0])
            if smoothed.mean[0] > best + (diverged_at - 1) * max(abs(best), losses[0] - best):
                stopped = "diverged"
                break
    if len(losses) < 3:
        raise ConfigError(
            f"the loss is not finite after {len(losses)} steps at rates up to {sweep[len(losses)]:.3g}", "a few steps that work", "lowest=1e-8, or look at the data"
        )
    tried = sweep[: len(losses)]
    window = max(3, len(losses) // 10 | 1)
    return RangeTest(tried, losses, stopped, suggest_rate(tried, losses, window))


@contextlib.contextmanager
def put_back(model: torch.nn.Module, optimizer: DistributedOptimizer, scaler: Optional[GradScaler] = None) -> Iterator[None]:
    """What the block does to model, optimizer and random states is undone afterwards, also where it raises. A collective."""
    comm = optimizer.comm
    modules = list(model.modules())
    training = [module.training for module in modules]
    params = [(param, param.detach().clone()) for param in model.parameters()]
    buffers = [(module, name, buffer, buffer.clone()) for module in modules for name, buffer in module._buffers.items() if buffer is not None]
    rates = [(group["lr"], get_rate(group)) for group in optimizer.param_groups]
    state, random = copy.deepcopy(optimizer.state_dict()), rng.get_rng_state(comm.device)
    scaler_state = copy.deepcopy(scaler.state_dict()) if scaler else None
    seen, where = (optimizer.last_loss, optimizer.last_grad_norm), comm.where

    def restore() -> None:
        optimizer.load_state_dict(state)
        for group, (given, value) in zip(optimizer.param_groups, rates):
            if isinstance(given, torch.Tensor):  # compiled and capturable optimizers hold on to the very tensor
                group["lr"] = given
                set_rate(group, value)
        with torch.no_grad():
            for param, before in params:
                param.copy_(before)
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer
                buffer.copy_(before)
        for module, was_training in zip(modules, training):
            module.training = was_training
        if scaler:
            scaler.load_state_dict(scaler_state)
        rng.set_rng_state(random, comm.device)
        (optimizer.last_loss, optimizer.last_grad_norm), comm.where = seen, where

    try:
        yield
    except BaseException:
        restore()  # without talking: the others may be elsewhere
        raise
    optimizer.zero_grad()
    restore()
    # Parameters may lie in memory that ranks share: nobody trains on while another still writes what was.
    comm.barrier(comm.unique_name("lr_range.done"))


def _batches(loader: Union[Loader, StreamLoader], fill_up: bool) -> Iterator[StepBatch]:
    """Whole global batches only, where an epoch has one: the loss of what is left at its end may be that of one sample."""
    epoch, has_whole = 0, False
    while True:
        for batch in loader.epoch(epoch, fill_up=fill_up):
            is_whole = batch.global_samples == loader.plan.global_batch
            has_whole = has_whole or is_whole
            if is_whole or not has_whole:
                yield batch
        epoch += 1


def as_row(result: RangeTest) -> dict[str, Any]:
    """Plain values, for JSON."""
    return {
        "rates": result.rates,
        "losses": result.losses,
        "stopped": result.stopped,
        "suggested": result.suggestion.rate,
        "lowest_loss_at": result.suggestion.lowest,
        "note": result.suggestion.note,
    }
