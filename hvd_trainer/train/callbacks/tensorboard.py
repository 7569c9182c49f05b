"""Curves for TensorBoard."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hvd_trainer.errors import MissingPartError
from hvd_trainer.train.callbacks.base import Callback, check_whole

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer


class TensorBoard(Callback):
    """Loss and rate every few steps, all columns of the epoch's row, written on rank 0.

    Args:
        folder: log directory of this run.
        every_steps: >= 1.

    Raises:
        MissingPartError: the package tensorboard is not installed; on all ranks, when training starts.
    """

    def __init__(self, folder: str | os.PathLike, every_steps: int = 10) -> None:
        check_whole("TensorBoard", "every_steps", every_steps)
        self._folder, self._every_steps = os.path.expanduser(folder), every_steps
        self._writer: Any = None

    def fit_start(self, trainer: Trainer) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingPartError("ht.TensorBoard needs the package tensorboard", "", "pip install tensorboard") from error
        if trainer.comm.rank == 0:
            # What a killed run wrote beyond the step it resumes from would show twice: hide steps >= purge_step.
            self._writer = SummaryWriter(self._folder, purge_step=trainer.step + 1 if trainer.step else None)

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        if self._writer is not None and report.step % self._every_steps == 0:
            self._writer.add_scalar("train/loss", report.loss, report.step)
            self._writer.add_scalar("train/lr", report.lr[0], report.step)

    def row_ready(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if self._writer is not None:
            for name, value in row.items():
                if name not in ("epoch", "step") and isinstance(value, (int, float)):
                    self._writer.add_scalar(f"epoch/{name}", value, row["step"])
            self._writer.flush()

    def fit_end(self, trainer: Trainer) -> None:
        if self._writer is not None:
            self._writer.close()

    fit_failed = fit_end
