"""Exact metrics on a validation set, into the epoch's row."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

from hvd_trainer.train.callbacks.base import Callback, check_whole
from hvd_trainer.train.callbacks.ema import EMA
from hvd_trainer.train.evaluation import RankBatches, evaluate_batches
from hvd_trainer.train.metrics import Metrics

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import Trainer


class Evaluate(Callback):
    """Evaluate every few epochs, and always at the end of the run.

    Args:
        dataset: map-style, the same on all ranks.
        metrics: (model, data) -> {"name": Weighted}, or {"name": (model, data) -> Weighted}, or the other kinds that
            `ht.evaluate` takes.
        every_epochs: >= 1.
        batch_size: samples in one forward pass of one rank.
        collate_fn: as in `Loader`.
        num_workers: as in `Loader`, of this rank and beside those of the Loader; kept from one evaluation to the next.
        buffers: whose batch statistics count: "rank0" (those of the checkpoint), the "mean" over the ranks, or "own".
        weights: an `EMA` before this one in the list, to measure its averaged weights.
    """

    def __init__(
        self,
        dataset: Any,
        metrics: Metrics,
        *,
        every_epochs: int = 1,
        batch_size: int = 256,
        collate_fn: Optional[Callable[[list], Any]] = None,
        num_workers: int = 0,
        buffers: str = "rank0",
        weights: Optional[EMA] = None,
    ) -> None:
        for name, value in (("every_epochs", every_epochs), ("batch_size", batch_size)):
            check_whole("Evaluate", name, value)
        check_whole("Evaluate", "num_workers", num_workers, least=0)
        self._dataset, self._metrics, self._every_epochs = dataset, metrics, every_epochs
        self._batch_size, self._collate_fn, self._num_workers = batch_size, collate_fn, num_workers
        self._batches: Optional[RankBatches] = None
        self._buffers, self._weights = buffers, weights

    def epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if row["epoch"] % self._every_epochs and not trainer.is_last_step:
            return
        if self._batches is None:
            self._batches = RankBatches(self._dataset, trainer.comm, self._batch_size, self._collate_fn, self._num_workers)
        model = self._weights.model if self._weights else trainer.model
        row.update(evaluate_batches(model, self._batches, self._metrics, trainer.comm, self._buffers))
