"""Save the run, so that the next start goes on at the exact sample."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from hvd_trainer.checkpoint.store import Store
from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.on_root import on_root
from hvd_trainer.errors import ConfigError
from hvd_trainer.train.callbacks.base import Callback, check_whole
from hvd_trainer.train.snapshot import take_snapshot

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer


class Checkpoint(Callback):
    """Write `folder/step-.../` on rank 0: after epochs, after steps, and when the run ends.

    Args:
        folder: of this run alone. `trainer.fit(..., resume="auto")` goes on from its newest checkpoint; a fresh start
            moves what an earlier run left there to `folder/previous-1`, `-2`, ....
        every_epochs: >= 1.
        every_steps: also within epochs; >= 1.
        keep: how many of the newest to keep, >= 1.
    """

    def __init__(self, folder: str | os.PathLike, *, every_epochs: int = 1, every_steps: Optional[int] = None, keep: int = 3) -> None:
        for name, value in (("every_epochs", every_epochs), ("every_steps", every_steps), ("keep", keep)):
            if value is not None:
                check_whole("Checkpoint", name, value)
        self.store = Store(folder, keep)
        self._every_epochs, self._every_steps = every_epochs, every_steps
        self._saved_at: Optional[int] = None
        self._path: Optional[str] = None  # of the newest that this fit wrote

    def fit_start(self, trainer: Trainer) -> None:
        self._saved_at, self._path = trainer.step if trainer.step else None, None
        name = trainer.comm.unique_name("checkpoint.aside")

        def prepare() -> Optional[Path]:
            self.store.prepare()
            return self.store.set_aside(trainer.step)

        previous = on_root(trainer.comm, prepare, name)
        if previous:
            trainer.comm.say(f'checkpoints of an earlier run moved to {previous} (resume="auto" would have gone on from them)')

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        # At the end of an epoch the row comes first: it belongs into the checkpoint.
        if not trainer.is_epoch_end and self._is_due(trainer):
            self._save(trainer)

    def row_ready(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if trainer.is_epoch_end and (row["epoch"] % self._every_epochs == 0 or self._is_due(trainer)):
            self._save(trainer)

    def fit_end(self, trainer: Trainer) -> None:
        if self._saved_at != trainer.step:
            self._save(trainer)
        if self._path:
            trainer.comm.say(f"saved {self._path}")

    def stopped(self, trainer: Trainer, row: dict[str, Any]) -> None:
        self._saved_at = None  # a row that was saved already got more columns

    def _is_due(self, trainer: Trainer) -> bool:
        return self._every_steps is not None and trainer.step % self._every_steps == 0

    def _save(self, trainer: Trainer) -> None:
        state, manifest = take_snapshot(trainer)  # on all ranks: random states are gathered
        self._path = on_root(trainer.comm, lambda: str(self.store.save(trainer.step, state, manifest)), trainer.comm.unique_name("checkpoint"))
        self._saved_at = trainer.step


def newest_checkpoint(callbacks: Sequence[Callback], comm: Communicator) -> Optional[str]:
    """Where `resume="auto"` goes on: the newest checkpoint in the folders of these callbacks; None where there is none yet.

    Raises:
        ConfigError: no Checkpoint among the callbacks.
    """
    stores = [callback.store for callback in callbacks if isinstance(callback, Checkpoint)]
    if not stores:
        raise ConfigError('resume="auto" without ht.Checkpoint among the callbacks', "a Checkpoint, which says where", 'ht.Checkpoint("runs/a")')

    def newest() -> Optional[str]:
        found = [path for path in (store.latest() for store in stores) if path is not None]
        return str(max(found, key=lambda path: path.name)) if found else None  # names rise with the steps

    return on_root(comm, newest, comm.unique_name("resume.find"))
