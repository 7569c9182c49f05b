"""Exact metrics over a data set that does not divide among the ranks: every sample once, one sum, one mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.data.device import to_device
from hvd_trainer.data.reader import SampleReader
from hvd_trainer.errors import DataError
from hvd_trainer.optim.replicas import common_buffers
from hvd_trainer.plan import split_evenly
from hvd_trainer.train.callbacks.base import check_whole
from hvd_trainer.train.metrics import Metrics, MetricSums


def evaluate(
    model: torch.nn.Module,
    dataset: Any,
    metrics: Metrics,
    comm: Communicator,
    *,
    batch_size: int = 256,
    collate_fn: Optional[Callable[[list], Any]] = None,
    buffers: str = "rank0",
) -> dict[str, Any]:
    """Each metric over all samples of `dataset`, each sample counted once, the same value on every rank.

    Args:
        model: put into evaluation mode here, and back afterwards.
        dataset: map-style, the same on all ranks; cut into contiguous shares, no padding. What it draws at random is a
            function of the index: the same in every evaluation.
        metrics: (model, data) -> {"name": value}, or {"name": (model, data) -> value}. A value is a Weighted (the mean is
            taken once, at the end) or a tensor that is added up (counts, a confusion matrix). Or {"name": (object,
            (model, data) -> arguments)} for objects with update, compute, reset and merge_state, such as torchmetrics'.
        comm: the ranks.
        batch_size: samples in one forward pass of one rank, >= 1.
        collate_fn: as in `Loader`.
        buffers: whose batch statistics count: "rank0", the "mean" over the ranks, or each rank its "own".

    Raises:
        DataError: the data set is empty.
        ConfigError: a metric is neither of these.

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
    sums = MetricSums(metrics)
    reader = SampleReader(dataset, collate_fn)
    with _evaluation_mode(model), common_buffers(model, comm, buffers), torch.no_grad():
        for at in range(begin, end, batch_size):
            data = to_device(reader.read(0, list(range(at, min(at + batch_size, end)))), comm.device)
            sums.update(model, data)
    return sums.result(comm)


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
