"""The memory probe: the largest micro-batch that every rank can train on, found without a rank being killed.

All ranks try the same sizes at the same time, as they would train, and each size is decided for all of them from what they
all report. On a CPU, where running out of memory is a SIGKILL and no exception, an attempt is a process of its own under
a limit; on a GPU it is an exception that is caught here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import ConfigError, HvdTrainerError
from hvd_trainer.optim.by_name import make_optimizer
from hvd_trainer.optim.loss import as_sum
from hvd_trainer.tune.memory_child import FAILED, FITS, TOO_LARGE, Child, Outcome, is_out_of_memory
from hvd_trainer.tune.memory_limit import available_bytes
from hvd_trainer.values import Weighted, as_whole


@dataclass(frozen=True)
class MemoryProbe:
    """What was found; the same on all ranks.

    Args:
        micro_batch: the largest that fits on every rank.
        too_large: the smallest that did not; None where everything up to the largest size asked for fits.
        limit_bytes: what each rank may take, the smallest share over the ranks.
        peaks: micro-batch -> bytes at its peak, the highest over the ranks.
        reason: what the smallest one that did not fit said, and on which rank.
    """

    micro_batch: int
    too_large: Optional[int]
    limit_bytes: int
    peaks: dict[int, int] = field(default_factory=dict)
    reason: str = ""


def next_size(good: int, bad: Optional[int], smallest: int, largest: int, tolerance: float) -> Optional[int]:
    """The size to try next: twice the last good one, then the middle; None when that is known well enough.

    Args:
        good: the largest that fits, 0 for none.
        bad: the smallest that does not.
        smallest, largest: the range.
        tolerance: stop where the gap is below this fraction of `good`.

    Example:
        >>> next_size(0, None, 1, 100, 0.05), next_size(64, None, 1, 100, 0.05), next_size(64, 100, 1, 100, 0.05)
        (1, 100, 82)
        >>> next_size(100, None, 1, 100, 0.05), next_size(80, 82, 1, 100, 0.05), next_size(0, 1, 1, 100, 0.05)
        (None, None, None)
    """
    if bad is None:
        return None if good >= largest else min(largest, max(smallest, 2 * good))
    if good == 0 or bad - good <= max(1, int(good * tolerance)):
        return None
    return (good + bad) // 2


def largest_micro_batch(
    attempt: Callable[[int], None],
    comm: Communicator,
    *,
    largest: int,
    smallest: int = 1,
    fraction: float = 0.8,
    limit_bytes: Optional[int] = None,
    tolerance: float = 0.05,
    timeout_s: float = 120.0,
) -> MemoryProbe:
    """Try sizes from `smallest`, doubling, then between, until the largest that fits on all ranks is known. A collective.

    Args:
        attempt: trains on a micro-batch of that many samples (see `TrainingAttempt`) and talks to no other rank. On a CPU it
            is copied to a spawned process, so it must be picklable; there it must not connect to the job.
        comm: the ranks.
        largest: samples; the rank batch of the largest global batch that matters.
        smallest: samples, >= 1.
        fraction: of what is available now, shared by the ranks on a node or a GPU, that may be used; 0 .. 1.
        limit_bytes: instead of that, for each rank.
        tolerance: how well the answer is to be known, as a fraction.
        timeout_s: for one attempt, and for the start of its process; less where the job's own timeout is shorter.

    Returns:
        A MemoryProbe, the same on all ranks.

    Raises:
        ConfigError: an argument is out of range, or not even `smallest` fits.
        HvdTrainerError: an attempt failed for another reason; on all ranks, naming the first of them.
    """
    _check(largest, smallest, fraction, limit_bytes, tolerance)
    name = comm.unique_name("memory")
    runner: Any = OnGpu(attempt, comm.device) if comm.device.type == "cuda" else OnCpu(attempt, min(timeout_s, 0.8 * comm.timeout_s))
    try:
        _agree(comm, f"{name}.start", _caught(runner.start), "start")
        mine = limit_bytes if limit_bytes is not None else int(fraction * runner.available() / _sharers(comm, name))
        limit = min(comm.gather_objects(mine, f"{name}.limit"))
        good, bad, reason, peaks = 0, None, "", {}
        while True:
            size = next_size(good, bad, smallest, largest, tolerance)
            if size is None:
                break
            outcomes = _agree(comm, f"{name}.outcome", _caught(runner.run, size, limit), f"a micro-batch of {size}")
            refused = [(rank, outcome) for rank, outcome in enumerate(outcomes) if outcome.kind == TOO_LARGE]
            if refused:
                bad, reason = size, f"rank {refused[0][0]}: {refused[0][1].text}"
            else:
                good, peaks[size] = size, max(outcome.peak_bytes or 0 for outcome in outcomes)
    finally:
        runner.stop()
    if good == 0:
        raise ConfigError(
            f"a micro-batch of {smallest} does not fit into {limit / 2**20:.0f} MiB ({reason})",
            "memory for at least that",
            "fewer ranks a node, a smaller model, or mixed precision",
        )
    return MemoryProbe(good, bad, limit, peaks, reason)


class OnCpu:
    """Attempts of one rank in a child process."""

    def __init__(self, attempt: Callable[[int], None], timeout_s: float) -> None:
        self._child = Child(attempt, timeout_s)
        self.start, self.run, self.stop = self._child.start, self._child.run, self._child.stop

    def available(self) -> float:
        return min(available_bytes(), 2**60)


class OnGpu:
    """Attempts of one rank on its GPU, in this process: there, running out of memory is an exception."""

    def __init__(self, attempt: Callable[[int], None], device: torch.device) -> None:
        self._attempt, self._device = attempt, device

    def start(self) -> Outcome:
        self._clean()
        return Outcome(FITS)

    def available(self) -> float:
        return torch.cuda.mem_get_info(self._device)[0]

    def run(self, micro_batch: int, limit_bytes: int) -> Outcome:
        self._clean()
        before = torch.cuda.memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        text = ""
        try:
            self._attempt(micro_batch)
            torch.cuda.synchronize(self._device)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        finally:
            # Reserved, not allocated: what lies in pieces between blocks cannot be used for another one either.
            peak = torch.cuda.max_memory_reserved(self._device) - before
            self._clean()
        if not text and peak > limit_bytes:
            text = f"{peak / 2**20:.0f} MiB, more than the {limit_bytes / 2**20:.0f} MiB that this rank may use"
        return Outcome(TOO_LARGE if text else FITS, peak, text)

    def stop(self) -> None:
        self._clean()

    def _clean(self) -> None:
        gc.collect()  # a traceback holds on to the tensors of its frames
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class TrainingAttempt:
    """Two steps of training on one micro-batch, with all that a step holds: activations, gradients, the buckets that they are
    summed in, the optimizer's state. Picklable where its functions are.

    Args:
        make_model: builds the model, on the CPU.
        make_batch: micro-batch -> what the loss function takes, on the CPU; `functools.partial(first_samples, dataset)`.
        loss_fn: as for `ht.Trainer`; (model, data) -> Weighted or a scalar.
        optimizer: a name for `ht.make_optimizer`.
        settings: of the optimizer.
        device: where training will be.
        autocast: "bfloat16" or "float16" for mixed precision.
    """

    make_model: Callable[[], torch.nn.Module]
    make_batch: Callable[[int], Any]
    loss_fn: Callable[[torch.nn.Module, Any], Any]
    optimizer: str = "sgd"
    settings: dict[str, Any] = field(default_factory=lambda: {"lr": 0.0, "momentum": 0.9})
    device: str = "cpu"
    autocast: Optional[str] = None

    def __call__(self, micro_batch: int) -> None:
        device = torch.device(self.device)
        model = self.make_model().to(device).train()
        opt = make_optimizer(self.optimizer, model, **self.settings)
        buckets = [torch.zeros_like(param) for param in model.parameters() if param.requires_grad]
        dtype = None if self.autocast is None else getattr(torch, self.autocast)
        for _ in range(2):  # the second has gradients and state of the first beside its activations
            data = _moved(self.make_batch(micro_batch), device)
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                loss = self.loss_fn(model, data)
            total = as_sum(loss, micro_batch, None if isinstance(loss, Weighted) else "mean")[0]
            (total / micro_batch).backward()
            opt.step()
        del buckets


def first_samples(dataset: Any, micro_batch: int, collate_fn: Callable[[list], Any] = torch.utils.data.default_collate) -> Any:
    """A batch of the first samples of a map-style data set, again from its start where it is short."""
    return collate_fn([dataset[index % len(dataset)] for index in range(micro_batch)])


def _moved(data: Any, device: torch.device) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device)
    if isinstance(data, dict):
        return {key: _moved(value, device) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        moved = [_moved(value, device) for value in data]
        return type(data)(*moved) if hasattr(data, "_fields") else type(data)(moved)
    return data


def _caught(function: Callable, *arguments: Any) -> Outcome:
    """No rank raises alone while the others wait for its outcome."""
    try:
        return function(*arguments) or Outcome(FITS)
    except Exception as error:
        return Outcome(FAILED, text=f"{type(error).__name__}: {error}")


def _agree(comm: Communicator, name: str, mine: Outcome, what: str) -> list[Outcome]:
    outcomes = comm.gather_objects(mine, name)
    failed = next(((rank, outcome.text) for rank, outcome in enumerate(outcomes) if outcome.kind == FAILED), None)
    if failed is not None:
        raise HvdTrainerError(f"memory probe, {what}: rank {failed[0]} failed: {failed[1]}", "attempts that fit or run out of memory", "")
    return outcomes


def _sharers(comm: Communicator, name: str) -> int:
    """How many ranks share this one's memory: those on its node, or on its GPU."""
    mine = (comm.node, comm.device.index if comm.device.type == "cuda" else None)
    return comm.gather_objects(mine, f"{name}.where").count(mine)


def _check(largest: int, smallest: int, fraction: float, limit_bytes: Optional[int], tolerance: float) -> None:
    whole = all((as_whole(value) or 0) >= 1 for value in (largest, smallest)) and smallest <= largest
    if not whole or not 0 < fraction <= 1 or not tolerance >= 0 or (limit_bytes is not None and not limit_bytes > 0):
        raise ConfigError(
            f"largest_micro_batch(smallest={smallest!r}, largest={largest!r}, fraction={fraction!r}, limit_bytes={limit_bytes!r}, tolerance={tolerance!r})",
            "1 <= smallest <= largest, 0 < fraction <= 1, limit_bytes > 0, tolerance >= 0",
            "largest=plan.rank_batches[0]",
        )


