"""Exact metrics over a data set that does not divide among the ranks: every sample once, one sum, one mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.derived import agree
from hvd_trainer.data.device import to_device
from hvd_trainer.data.reader import SampleReader
from hvd_trainer.data.workers import Workers
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
    num_workers: int = 0,
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
        num_workers: as in `Loader`; started anew by each call (`ht.Evaluate` keeps its own).
        buffers: whose batch statistics count: "rank0", the "mean" over the ranks, or each rank its "own".

    Raises:
        DataError: the data set is empty.
        ConfigError: a metric is neither of these.
        CollectiveError: the ranks' data sets differ in length.

    Example:
        >>> import hvd_trainer as ht
        >>> share_above_3 = lambda model, x: {"above_3": ht.Weighted((x > 3).sum(), len(x))}
        >>> ht.evaluate(torch.nn.Identity(), list(range(10)), share_above_3, ht.init(engine="single"))
        {'above_3': 0.6}
    """
    batches = RankBatches(dataset, comm, batch_size, collate_fn, num_workers)
    return evaluate_batches(model, batches, metrics, comm, buffers)


class RankBatches:
    """This rank's share of a data set in batches, the same ones each time it is iterated; keeps its worker processes."""

    def __init__(
        self, dataset: Any, comm: Communicator, batch_size: int, collate_fn: Optional[Callable[[list], Any]], num_workers: int
    ) -> None:
        check_whole("evaluate", "batch_size", batch_size)
        check_whole("evaluate", "num_workers", num_workers, least=0)
        self._dataset, self._comm, self._batch_size = dataset, comm, batch_size
        self._reader = SampleReader(dataset, collate_fn)
        self._workers = Workers(self._reader, num_workers, 2, None, f"rank {comm.rank}") if num_workers else None

    def __iter__(self) -> Iterator[Any]:
        agree(self._comm, len(self._dataset), "the length of the evaluation data set")  # shares of two wholes overlap
        if len(self._dataset) < 1:
            raise DataError("the evaluation data set has 0 samples", "at least 1", "check the path or the filter that made it")
        shares = split_evenly(len(self._dataset), self._comm.size)
        begin = sum(shares[: self._comm.rank])
        mine = range(begin, begin + shares[self._comm.rank])
        tasks = [(0, list(mine[at : at + self._batch_size])) for at in range(0, len(mine), self._batch_size)]
        reading = self._workers.start(tasks) if self._workers else None
        for number, task in enumerate(tasks):
            yield to_device(reading.fetch(number, task) if reading else self._reader.read(*task), self._comm.device)


def evaluate_batches(
    model: torch.nn.Module, batches: RankBatches, metrics: Metrics, comm: Communicator, buffers: str
) -> dict[str, Any]:
    """As `evaluate`, of batches that were cut already."""
    sums = MetricSums(metrics)
    with _evaluation_mode(model), common_buffers(model, comm, buffers), torch.no_grad():
        for data in batches:
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
