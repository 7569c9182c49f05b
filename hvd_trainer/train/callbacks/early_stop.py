"""End the run when a reduced value no longer improves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hvd_trainer.errors import ConfigError
from hvd_trainer.train.callbacks.base import Callback

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import Trainer


class EarlyStop(Callback):
    """Stop after `patience` rows in a row without improvement. Rows are reduced, so all ranks stop at the same step.

    Args:
        monitor: column of the epoch's row; rows without it (no evaluation in that epoch) do not count.
        mode: "min" or "max": what is better.
        patience: rows without improvement that are let pass, >= 1.
        min_delta: an improvement is more than this, >= 0.

    Raises:
        ConfigError: an argument is out of range; or, when an epoch ends, no such column is ever there.
    """

    def __init__(self, monitor: str = "loss", *, mode: str = "min", patience: int = 3, min_delta: float = 0.0) -> None:
        if mode not in ("min", "max"):
            raise ConfigError(f"EarlyStop(mode={mode!r})", '"min" or "max"', 'mode="max" for an accuracy')
        if not patience >= 1 or not min_delta >= 0:
            raise ConfigError(f"EarlyStop(patience={patience!r}, min_delta={min_delta!r})", "patience >= 1, min_delta >= 0", "patience=3")
        self._monitor, self._sign = monitor, 1.0 if mode == "min" else -1.0
        self._patience, self._min_delta = patience, min_delta
        self._best, self._num_bad = math.inf, 0

    def wants_stop(self, trainer: Trainer, row: dict[str, Any]) -> bool:
        if self._monitor not in row:
            if trainer.is_last_step:
                raise ConfigError(f"EarlyStop watches {self._monitor!r}", f"one of {', '.join(row)}", "EarlyStop(monitor=...)")
            return False
        value = self._sign * row[self._monitor]
        if value < self._best - self._min_delta:
            self._best, self._num_bad = value, 0
            return False
        self._num_bad += 1
        if self._num_bad < self._patience:
            return False
        trainer.comm.say(f"early stop after epoch {row['epoch']}: {self._monitor} has not improved for {self._num_bad} rows")
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "num_bad": self._num_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._best, self._num_bad = state["best"], state["num_bad"]
