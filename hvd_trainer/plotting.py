"""matplotlib where it is wanted: imported when something is drawn, and never with a window."""

from __future__ import annotations

from typing import Any

from hvd_trainer.errors import MissingPartError


def pyplot(fix: str = "pip install matplotlib") -> Any:
    """matplotlib's pyplot, drawing into memory and files only.

    Args:
        fix: for the message where it is missing.

    Raises:
        MissingPartError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPartError("plots need matplotlib", fix=fix) from error
    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    return plt
