"""Exact metrics over a data set that does not divide among the ranks: every sample once, one sum, one mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.data.device import to_device
from hvd_trainer.data.reader import SampleReader
from hvd_trainer.errors import ConfigError, DataError
from hvd_trainer.optim.replicas import common_buffers
from hvd_trainer.plan import split_evenly
from hvd_trainer.train.callbacks.base import check_whole
from hvd_trainer.values import Weighted

Metrics = Union[Callable, Mapping[str, Callable]]


def evaluate(
    model: torch.nn.Module,
    dataset: Any,
    metrics: Metrics,
    comm: Communicator,
    *,
    batch_size: int = 256,
    collate_fn: Optional[Callable[[list], Any]] = None,
    buffers: str = "rank0",
) -> dict[str, float]:
    """Mean of each metric over all samples of `dataset`, each counted once, the same value on every rank.

    Args:
        model: put into evaluation mode here, and back afterwards.
        dataset: map-style, the same on all ranks; cut into contiguous shares, no padding. What it draws at random is a
            function of the index: the same in every evaluation.
        metrics: (model, data) -> {"name": Weighted}, or {"name": (model, data) -> Weighted}.
        comm: the ranks.
        batch_size: samples in one forward pass of one rank, >= 1.
        collate_fn: as in `Loader`.
        buffers: whose batch statistics count: "rank0", the "mean" over the ranks, or each rank its "own".

    Raises:
        DataError: the data set is empty.
        ConfigError: a metric is not a Weighted.

    Example:
        >>> import hvd_trainer as ht
        >>> share_above_3 = lambda model, x: {"above_3": ht.Weighted((x > 3).sum(), len(x))}
        >>> ht.evaluate(torch.nn.Identity(), list(range(10)), share_above_3, ht.init(engine="single"))
        {'above_3': 0.6}
    """
    check_whole("evaluate", "batch_size", batch_size)
    if len(dataset) < 1:
        raise DataError("the evaluation data set has 0 samples", "at least 1", "check the path or the filter that made it")
    shares = split_evenly(len(dataset), comm.size)
    begin = sum(shares[: comm.rank])
    end = begin + shares[comm.rank]
    sums: dict[str, Weighted] = {}
    reader = SampleReader(dataset, collate_fn)
    with _evaluation_mode(model), common_buffers(model, comm, buffers), torch.no_grad():
        for at in range(begin, end, batch_size):
            data = to_device(reader.read(0, list(range(at, min(at + batch_size, end)))), comm.device)
            for name, value in _measure(metrics, model, data).items():
                value = Weighted(_number(value.total), _number(value.weight))
                sums[name] = sums[name] + value if name in sums else value
    return reduce_sums(sums, comm)


@contextlib.contextmanager
def _evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Afterwards every module has the mode that it had: one that the user froze with `eval()` stays frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def reduce_sums(sums: Mapping[str, Weighted], comm: Communicator) -> dict[str, float]:
    """Means over all ranks of the ranks' sums; a rank without samples may pass nothing. The order is rank 0's."""
    name = comm.unique_name("metrics")
    names = list(dict.fromkeys(n for theirs in comm.gather_objects(list(sums), f"{name}.names") for n in theirs))
    numbers = [(float(sums[n].total), float(sums[n].weight)) if n in sums else (0.0, 0.0) for n in names]
    vector = torch.tensor(numbers, dtype=torch.float64).to(comm.device)
    totals = comm.allreduce_(vector, f"{name}.sums").wait().tolist()
    return {n: Weighted(total, weight).mean for n, (total, weight) in zip(names, totals)}


def _measure(metrics: Metrics, model: torch.nn.Module, data: Any) -> dict[str, Weighted]:
    if isinstance(metrics, Mapping):
        found = {name: function(model, data) for name, function in metrics.items()}
    else:
        found = metrics(model, data)
    fix = 'return {"accuracy": ht.Weighted((pred == y).sum(), len(y))}'
    if not isinstance(found, Mapping):
        raise ConfigError(f"the metrics function returned a {type(found).__name__}", "a dict of name -> ht.Weighted", fix)
    for name, value in found.items():
        if not isinstance(value, Weighted):
            raise ConfigError(f"metric {name!r} is a {type(value).__name__}", "ht.Weighted(sum, weight): a mean cannot be averaged exactly", fix)
    return found


def _number(value: Any) -> float:
    # Python floats are float64: integers up to 2^53 and sums over any number of batches stay exact enough.
    return float(value)
