"""One finding: what was looked at, how it is, what to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Args:
        name: what was looked at.
        state: `ok`, `warn` (training works, something is worth changing) or `fail` (training cannot work).
        text: what was found, one or more lines.
        fix: the command or change that cures it; empty when nothing is to do.
        data: the same for machines.
    """

    name: str
    state: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""
    data: dict[str, Any] = field(default_factory=dict)
