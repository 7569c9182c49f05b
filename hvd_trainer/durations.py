"""Seconds as people write them (pure)."""

from __future__ import annotations


def show_duration(seconds: float) -> str:
    """As short as it can be read.

    Example:
        >>> [show_duration(value) for value in (0.0423, 7.5, 75, 3700)]
        ['0.0423 s', '7.5 s', '1m15s', '1h01m']
    """
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
