"""What can go wrong, as a tree; every message says what was given, what is allowed and what fixes it.

    HvdTrainerError
    |- ConfigError            a setting that cannot work, found before training starts (also a ValueError)
    |- MissingPartError       an optional package that is used and not installed (also an ImportError)
    |- StartError             the ranks did not find each other
    |- CollectiveError        ranks disagree about a collective, or one of them did not come
    |  `- CollectiveTimeout   nobody answered within timeout_s
    |- DataError              the data cannot give what the plan asks for
    |- LossError              what the loss function returned cannot be averaged
    |- NonFiniteError         a NaN or an infinity, decided from the reduced value, the same on all ranks
    |- ReplicaError           parameters or buffers differ between ranks
    `- CheckpointError        a checkpoint cannot be written, read, or belongs to something else

A user's mistake is shown as the message alone, without a traceback (`hvd_trainer.comm.guard`).
"""

from __future__ import annotations


class HvdTrainerError(Exception):
    """Base of all errors that this package raises on purpose.

    Args:
        given: what was found or passed, as a sentence.
        allowed: what would have been accepted; empty where `given` says it.
        fix: the command or change that cures it.
    """

    def __init__(self, given: str, allowed: str = "", fix: str = "") -> None:
        self.given, self.allowed, self.fix = given, allowed, fix
        super().__init__(given, allowed, fix)

    def __str__(self) -> str:
        lines = [self.given]
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.fix:
            lines.append(f"  fix:     {self.fix}")
        return "\n".join(lines)


class ConfigError(HvdTrainerError, ValueError):
    """A setting that cannot work, found before training starts."""


class MissingPartError(HvdTrainerError, ImportError):
    """An optional package that is used and not installed."""


class StartError(HvdTrainerError):
    """The ranks did not find each other."""


class CollectiveError(HvdTrainerError):
    """Ranks disagree about a collective, or one of them did not come."""


class CollectiveTimeout(CollectiveError):
    """Nobody answered a collective within `timeout_s`."""


class DataError(HvdTrainerError, ValueError):
    """The data cannot give what the plan asks for."""


class LossError(HvdTrainerError, ValueError):
    """What the loss function returned cannot be averaged."""


class NonFiniteError(HvdTrainerError, ArithmeticError):
    """A NaN or an infinity, decided from the reduced value, the same on all ranks."""


class ReplicaError(HvdTrainerError):
    """Parameters or buffers differ between ranks."""


class CheckpointError(HvdTrainerError):
    """A checkpoint cannot be written, read, or belongs to something else."""
