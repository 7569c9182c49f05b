"""Exact metrics on a validation set, into the epoch's row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional

from hvd_trainer.errors import ConfigError
from hvd_trainer.train.callbacks.base import Callback, check_whole
from hvd_trainer.train.callbacks.ema import EMA
from hvd_trainer.train.evaluation import RankBatches, evaluate_batches
from hvd_trainer.train.metrics import Metrics

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import Trainer

OWN_COLUMNS = ("epoch", "step", "loss", "lr", "samples_per_s")  # every row has them before a callback sees it


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
        prefix: put before each metric's name: "val_" makes the columns val_loss, val_accuracy, ....

    Raises:
        ConfigError: a metric has the name of a column that is there already (of the training, or of another Evaluate).
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
        prefix: str = "",
    ) -> None:
        for name, value in (("every_epochs", every_epochs), ("batch_size", batch_size)):
            check_whole("Evaluate", name, value)
        check_whole("Evaluate", "num_workers", num_workers, least=0)
        self._dataset, self._metrics, self._every_epochs = dataset, metrics, every_epochs
        self._batch_size, self._collate_fn, self._num_workers = batch_size, collate_fn, num_workers
        self._batches: Optional[RankBatches] = None
        self._buffers, self._weights, self._prefix = buffers, weights, prefix
        self._evaluated_at: Optional[int] = None  # the step
        if isinstance(metrics, Mapping):  # a function's names are known when it has run
            _check_names([prefix + name for name in metrics], OWN_COLUMNS)

    def epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if row["epoch"] % self._every_epochs == 0 or trainer.is_last_step:
            self._add_columns(trainer, row)

    def stopped(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if self._evaluated_at != trainer.step:
            self._add_columns(trainer, row)

    def _add_columns(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if self._batches is None:
            self._batches = RankBatches(self._dataset, trainer.comm, self._batch_size, self._collate_fn, self._num_workers)
        model = self._weights.model if self._weights else trainer.model
        found = evaluate_batches(model, self._batches, self._metrics, trainer.comm, self._buffers)
        columns = {self._prefix + name: value for name, value in found.items()}
        _check_names(columns, row)  # all ranks have the same names: they were reduced
        row.update(columns)
        self._evaluated_at = trainer.step


def _check_names(names: Iterable[str], taken: Iterable[str]) -> None:
    for name in names:
        if name in taken:
            raise ConfigError(
                f"the metric {name!r} would overwrite the column {name!r} of the epoch's row",
                f"other names than {', '.join(taken)}",
                'ht.Evaluate(..., prefix="val_"), or another name for the metric',
            )
