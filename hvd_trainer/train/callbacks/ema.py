"""An exponential moving average of the weights, for evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hvd_trainer.checkpoint.names import load_plain_state_dict, plain_state_dict
from hvd_trainer.errors import ConfigError
from hvd_trainer.train.callbacks.base import Callback

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer


class EMA(Callback):
    """Average the weights after every step: `average = decay * average + (1 - decay) * weight`.

    Every rank averages the same weights, so the averages are equal without talking. `Evaluate(..., weights=ema)` measures
    the average; `ema.model` is it. Saved with the checkpoint.

    Args:
        decay: 0 <= decay < 1; 0.999 looks back over about 1,000 steps.
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"EMA(decay={decay!r})", "0 <= decay < 1", "decay=0.999")
        self._decay = decay
        self._averaged: Optional[AveragedModel] = None
        self._loaded: dict[str, Any] = {}

    @property
    def model(self) -> torch.nn.Module:
        """The model with averaged weights; there from the start of training on."""
        if self._averaged is None:
            raise ConfigError("EMA.model before training has started", "inside or after trainer.fit", "put the EMA before Evaluate in callbacks")
        return self._averaged.module

    def fit_start(self, trainer: Trainer) -> None:
        if self._averaged is None:
            average = get_ema_multi_avg_fn(self._decay)
            self._averaged = AveragedModel(trainer.model, multi_avg_fn=average, use_buffers=True)
            if self._loaded:
                load_plain_state_dict(self._averaged, self._loaded)

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        self._averaged.update_parameters(trainer.model)

    def state_dict(self) -> dict[str, Any]:
        return plain_state_dict(self._averaged) if self._averaged is not None else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state
