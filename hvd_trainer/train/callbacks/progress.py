"""What a person at a terminal wants to see, on rank 0: a bar for one process at a terminal, else plain lines."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

from hvd_trainer.amounts import show_rate
from hvd_trainer.errors import ConfigError
from hvd_trainer.log import say
from hvd_trainer.train.callbacks.base import Callback

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import StepReport, Trainer


class Progress(Callback):
    """Loss, rate, samples/s and time left (in the last line: taken); a line for every epoch, and within long epochs one every few seconds.

    Args:
        every_s: seconds between lines (or between updates of the bar's text, there at most 0.2).
    """

    def __init__(self, every_s: float = 10.0) -> None:
        if isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or not every_s >= 0:
            raise ConfigError(f"Progress(every_s={every_s!r})", "seconds >= 0", "leave every_s out")
        self._every_s = every_s
        self._bar: Any = None

    def fit_start(self, trainer: Trainer) -> None:
        self._started_s = self._shown_s = time.monotonic()
        self._first_step = trainer.step
        # Launchers put a pseudo-terminal around each rank and paste its output into files: no bar with several ranks.
        if trainer.comm.size == 1 and sys.stdout.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, transient=True)
            self._task = self._bar.add_task("", total=trainer.total_steps if _of(trainer) else None, completed=trainer.step, epoch=trainer.epoch + 1)
            self._bar.start()

    def step_end(self, trainer: Trainer, report: StepReport) -> None:
        now = time.monotonic()
        if trainer.comm.rank != 0 or now - self._shown_s < (0.2 if self._bar else self._every_s):
            return
        self._shown_s = now
        epoch = trainer.epoch + (not trainer.is_epoch_end)  # after its last step an epoch is done
        text = f"loss {report.loss:.4f}  lr {report.lr[0]:.4g}  {show_rate(report.samples_per_s)}"
        if self._bar:
            self._bar.update(self._task, completed=report.step, description=text, epoch=epoch)
        else:
            say(f"epoch {epoch}  step {report.step}{_of(trainer)}  {text}  {self._left(trainer)}".rstrip())

    def row_ready(self, trainer: Trainer, row: dict[str, Any]) -> None:
        if trainer.comm.rank != 0:
            return
        self._shown_s = time.monotonic()
        columns = [f"epoch {row['epoch']}", f"step {row['step']}{_of(trainer)}"]
        for name, value in row.items():
            if name == "samples_per_s":
                columns.append(show_rate(value))
            elif name not in ("epoch", "step"):
                columns.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
        took_s = time.monotonic() - self._started_s
        line = "  ".join(columns + [f"done in {_clock(took_s)}" if trainer.is_last_step else self._left(trainer)]).rstrip()
        if self._bar:
            self._bar.console.print(line, highlight=False)
            self._bar.update(self._task, completed=trainer.step)
        else:
            say(line)

    def fit_end(self, trainer: Trainer) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None

    fit_failed = fit_end

    def _left(self, trainer: Trainer) -> str:
        if not _of(trainer):
            return ""
        done = trainer.step - self._first_step
        left_s = (time.monotonic() - self._started_s) / max(done, 1) * (trainer.total_steps - trainer.step)
        return f"{_clock(left_s)} left"


def _of(trainer: Trainer) -> str:
    """The "/100" of "step 1/100"; "" where the number of steps is not known."""
    return f"/{trainer.total_steps}" if math.isfinite(trainer.total_steps) else ""


def _clock(time_s: float) -> str:
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
