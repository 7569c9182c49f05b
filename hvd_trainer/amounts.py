"""Counts and rates as people write them (pure)."""

from __future__ import annotations


def show_count(count: int, noun: str) -> str:
    """A number with its noun, in the plural where there is not one of it.

    Args:
        count: how many.
        noun: for one of them; regular, and in the plural "es" after ch.

    Example:
        >>> show_count(1, "trial"), show_count(0, "batch"), show_count(1437, "sample")
        ('1 trial', '0 batches', '1,437 samples')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def show_rate(per_s: float) -> str:
    """Samples a second: whole ones, and three digits where there are few of them.

    Example:
        >>> show_rate(11340.4), show_rate(99.96), show_rate(0.4567)
        ('11,340 samples/s', '100 samples/s', '0.457 samples/s')
    """
    return f"{per_s:,.0f} samples/s" if per_s >= 100 else f"{per_s:.3g} samples/s"
