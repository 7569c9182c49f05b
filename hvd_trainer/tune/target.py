"""What a user types: a target as "val_loss<=0.42", a budget as "15m", lists as "1,2" (pure)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hvd_trainer.errors import ConfigError

_TARGET = re.compile(r"\s*([A-Za-z_][\w./-]*)\s*(<=|>=|==|<|>|=)\s*(\S+)\s*")
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


@dataclass(frozen=True)
class Target:
    """A metric and how far it must come.

    Args:
        metric: a column of `ht.Evaluate`, or "loss", the training loss since the last evaluation.
        sign: "<=" or ">=".
        bound: the value.
    """

    metric: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.bound:g}"


def parse_target(text: str) -> Target:
    """A target from the command line.

    Raises:
        ConfigError: no comparison, an equality, or no number.

    Example:
        >>> parse_target("val_loss <= 0.42")
        Target(metric='val_loss', sign='<=', bound=0.42)
        >>> str(parse_target("test_accuracy>0.95"))
        'test_accuracy>=0.95'
    """
    found = _TARGET.fullmatch(text)
    if not found or found[2] in ("=", "=="):
        raise ConfigError(f"--target {text!r}", "metric<=number or metric>=number", '--target "val_loss<=0.42"')
    try:
        bound = float(found[3])
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ConfigError(f"--target {text!r}: {found[3]!r} is no finite number", "metric<=number", '--target "val_loss<=0.42"')
    return Target(found[1], found[2][0] + "=", bound)


def parse_duration(text: str) -> float:
    """Seconds from "90", "90s", "15m", "1h30m".

    Raises:
        ConfigError: another form, or nothing above 0.

    Example:
        >>> parse_duration("15m"), parse_duration("1h30m"), parse_duration("90")
        (900.0, 5400.0, 90.0)
    """
    found = _DURATION.fullmatch(text.strip())
    seconds = sum(float(part or 0) * unit for part, unit in zip(found.groups(), (3600, 60, 1))) if found else 0.0
    if not seconds > 0:
        raise ConfigError(f"--budget {text!r}", "a time as 90s, 15m or 1h30m", "--budget 15m")
    return seconds


def parse_whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers >= 1, separated by commas, each once, in order.

    Raises:
        ConfigError: anything else.

    Example:
        >>> parse_whole_numbers("--ranks", "2,1,2")
        (1, 2)
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise ConfigError(f"{option} {text!r}", "whole numbers >= 1, separated by commas", f"{option} 1,2")
    return tuple(sorted({int(word) for word in words}))
