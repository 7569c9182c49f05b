"""What may be measured, added up over batches and ranks: means, counts of any shape, and objects that accumulate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.values import Weighted

# A function, or name -> function, or name -> (accumulating object, function that gives the arguments of its update).
Metrics = Union[Callable, Mapping[str, Union[Callable, tuple[Any, Callable]]]]
FIX = 'return {"accuracy": ht.Weighted((pred == y).sum(), len(y))}'


class MetricSums:
    """The sums of one rank; `result` adds the ranks up.

    Args:
        metrics: what `ht.evaluate` takes.

    Raises:
        ConfigError: an accumulating object without update, compute, reset and merge_state.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._functions: Any = metrics
        self._accumulators: dict[str, tuple[Any, Callable]] = {}
        self._sums: dict[str, Union[Weighted, torch.Tensor]] = {}
        if isinstance(metrics, Mapping):
            pairs = {name: value for name, value in metrics.items() if isinstance(value, tuple)}
            self._functions = {name: value for name, value in metrics.items() if name not in pairs}
            for name, (accumulator, arguments) in pairs.items():
                missing = [m for m in ("update", "compute", "reset", "merge_state") if not hasattr(accumulator, m)]
                if missing:
                    raise ConfigError(
                        f"metric {name!r}: {type(accumulator).__name__} has no {', '.join(missing)}",
                        "an object with update, compute, reset and merge_state, such as those of torchmetrics",
                        "or a function that returns ht.Weighted or a tensor of counts",
                    )
                accumulator = copy.deepcopy(accumulator)  # the user's own keeps what it holds
                accumulator.reset()
                if hasattr(accumulator, "sync_on_compute"):
                    accumulator.sync_on_compute = False  # torchmetrics would add up once more where torch.distributed runs
                self._accumulators[name] = (accumulator, arguments)

    def update(self, model: torch.nn.Module, data: Any) -> None:
        """Add one batch."""
        for name, value in self._measure(model, data).items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        for accumulator, arguments in self._accumulators.values():
            accumulator.update(*arguments(model, data))

    def result(self, comm: Communicator) -> dict[str, Any]:
        """Over all ranks, the same on each: floats for means, numbers or nested lists for counts and accumulators."""
        found = reduce_sums(self._sums, comm)
        for name, (accumulator, _) in self._accumulators.items():
            first, *others = comm.gather_objects(accumulator, comm.unique_name(f"metric.{name}"))
            for other in others:
                first.merge_state(other)
            found[name] = plain(first.compute())
        return found

    def _measure(self, model: torch.nn.Module, data: Any) -> dict[str, Union[Weighted, torch.Tensor]]:
        if isinstance(self._functions, Mapping):
            found: Any = {name: function(model, data) for name, function in self._functions.items()}
        else:
            found = self._functions(model, data)
        if not isinstance(found, Mapping):
            raise ConfigError(f"the metrics function returned a {type(found).__name__}", "a dict of name -> ht.Weighted", FIX)
        return {name: _as_sum(name, value) for name, value in found.items()}


def reduce_sums(sums: Mapping[str, Union[Weighted, torch.Tensor]], comm: Communicator) -> dict[str, Any]:
    """Means (of Weighted) and sums (of tensors) over all ranks; a rank without samples may pass nothing.

    Args:
        sums: this rank's; tensors are int64 or float64.
        comm: the ranks.

    Returns:
        In the order in which rank 0, then the others, name them.
    """
    name = comm.unique_name("metrics")
    mine = {n: None if isinstance(v, Weighted) else (tuple(v.shape), v.dtype) for n, v in sums.items()}
    kinds: dict[str, Any] = {}
    for theirs in comm.gather_objects(mine, f"{name}.names"):
        for n, kind in theirs.items():
            if kinds.setdefault(n, kind) != kind:
                raise ConfigError(f"metric {n!r} has another shape or kind on another rank", "the same on all ranks", "give it a fixed shape, e.g. the number of classes")
    means = [n for n, kind in kinds.items() if kind is None]
    numbers = [(float(sums[n].total), float(sums[n].weight)) if n in sums else (0.0, 0.0) for n in means]
    vector = torch.tensor(numbers, dtype=torch.float64).to(comm.device)
    pending = {"": comm.allreduce_(vector, f"{name}.means")}
    for n, kind in kinds.items():
        if kind is not None:
            tensor = sums[n].to(comm.device) if n in sums else torch.zeros(kind[0], dtype=kind[1], device=comm.device)
            pending[n] = comm.allreduce_(tensor, f"{name}.{n}")
    pairs = dict(zip(means, pending.pop("").wait().tolist()))
    return {n: Weighted(*pairs[n]).mean if kind is None else plain(pending[n].wait()) for n, kind in kinds.items()}


def plain(value: Any) -> Any:
    """Tensors as Python numbers and lists, so that a row can be written as JSON; mappings and sequences likewise."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _as_sum(name: str, value: Any) -> Union[Weighted, torch.Tensor]:
    """Python floats and int64 or float64 tensors: integers stay exact, and a sum of many float32 stays accurate."""
    if isinstance(value, Weighted):
        return Weighted(float(value.total), float(value.weight))
    # One float is a mean that somebody took, nearly always: added up over batches it would be wrong without a message.
    if isinstance(value, torch.Tensor) and (value.dim() or not value.is_floating_point()):
        return value.detach().clone().to(torch.float64 if value.is_floating_point() else torch.int64)
    raise ConfigError(
        f"metric {name!r} is a {type(value).__name__}",
        "ht.Weighted(sum, weight), or a tensor that is added up (a count, a confusion matrix); a mean cannot be averaged exactly",
        FIX,
    )
