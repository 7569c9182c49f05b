"""The hooks of the loop. A callback overrides what it needs; hooks run on all ranks, in the order of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_trainer.errors import ConfigError
from hvd_trainer.values import as_whole

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer


class Callback:
    """Base of all callbacks; every hook does nothing here. See `Trainer.fit` for the moments.

    A hook may talk to the other ranks (it runs on all of them) but must do so on all: print on rank 0 with
    `if trainer.comm.rank == 0`, compute everywhere.
    """

    def fit_start(self, trainer: Trainer) -> None:
        """Everything is built and, where asked for, resumed; no step was taken yet."""

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        """One optimizer step is done."""

    def epoch_end(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """An epoch (or the last part of one) is over: add columns to its row."""

    def wants_stop(self, trainer: Trainer, row: dict[str, Any]) -> bool:
        """All columns are there: whether the run ends with this row. The same answer on all ranks."""
        return False

    def stopped(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """The run was ended after this row's `epoch_end`: add the columns that were left out because it went on."""

    def row_ready(self, trainer: Trainer, row: dict[str, Any]) -> None:
        """All columns are there: write, print or save them."""

    def fit_end(self, trainer: Trainer) -> None:
        """The last step was taken."""

    def fit_failed(self, trainer: Trainer) -> None:
        """An error ends the run on this rank: close what is open. Other ranks may be elsewhere, so talk to none."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a resume (plain values and tensors); saved by rank 0."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`, on all ranks."""


def check_whole(owner: str, name: str, value: Any, least: int = 1) -> None:
    """Raise ConfigError unless the option is a whole number of at least `least`."""
    whole = as_whole(value)
    if whole is None or whole < least:
        raise ConfigError(f"{owner}({name}={value!r})", f"a whole number >= {least}", f"leave {name} out")
