"""One JSON line an epoch (and, if asked, every few steps), for scripts and plots."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_trainer.train.callbacks.base import Callback, check_whole

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer


class JsonLines(Callback):
    """Append rows to a file on rank 0. A resume drops the lines of steps that will be taken again.

    Args:
        path: of the file; folders are made.
        every_steps: also write a row {"kind": "step", ...} after every so many steps; 0: epochs only.
    """

    def __init__(self, path: str | os.PathLike, every_steps: int = 0) -> None:
        check_whole("JsonLines", "every_steps", every_steps, least=0)
        self._path, self._every_steps = Path(path).expanduser(), every_steps

    def fit_start(self, trainer: Trainer) -> None:
        if trainer.comm.rank != 0:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if trainer.step and self._path.exists():
            lines = [line for line in self._path.read_text().splitlines() if _step_of(line) <= trainer.step]
            self._path.write_text("".join(line + "\n" for line in lines))
        else:
            self._path.write_text("")

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        if self._every_steps and report.step % self._every_steps == 0:
            self._write(trainer, {"kind": "step", "step": report.step, "loss": report.loss, "lr": report.lr[0], "samples": report.samples})

    def row_ready(self, trainer: Trainer, row: dict[str, Any]) -> None:
        self._write(trainer, {"kind": "epoch", **row})

    def _write(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if trainer.comm.rank == 0:
            with open(self._path, "a") as file:
                # JSON has no NaN and no infinity.
                plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
                file.write(json.dumps(plain) + "\n")


def _step_of(line: str) -> float:
    """The step of a line; infinite where a kill tore it."""
    try:
        return json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):
        return math.inf
