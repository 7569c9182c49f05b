"""Train the head first, deeper layers later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hvd_trainer.errors import ConfigError
from hvd_trainer.train.callbacks.base import Callback

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import Trainer


class Unfreeze(Callback):
    """Freeze parameters at the start and set each group free after a number of epochs; the same after a resume.

    The optimizer holds all of them from the start; a frozen parameter has no gradient, so it gets no weight decay.

    Args:
        after_epochs: {whole epochs done: prefix of parameter names}, e.g. {1: "backbone.layer4", 3: "backbone"}.

    Raises:
        ConfigError: when training starts, a prefix that no parameter has.
    """

    def __init__(self, after_epochs: Mapping[int, str]) -> None:
        self._after_epochs = dict(sorted(after_epochs.items()))

    def fit_start(self, trainer: Trainer) -> None:
        self._apply(trainer)

    def row_ready(self, trainer: Trainer, row: dict[str, Any]) -> None:
        self._apply(trainer)

    def _apply(self, trainer: Trainer) -> None:
        names = [name for name, _ in trainer.model.named_parameters()]
        for prefix in self._after_epochs.values():
            if not any(name.startswith(prefix) for name in names):
                raise ConfigError(f"Unfreeze: no parameter begins with {prefix!r}", ", ".join(names[:20]), "correct the prefix")
        for name, parameter in trainer.model.named_parameters():
            waits = [epochs for epochs, prefix in self._after_epochs.items() if name.startswith(prefix)]
            if waits:
                parameter.requires_grad_(trainer.epoch >= min(waits))
