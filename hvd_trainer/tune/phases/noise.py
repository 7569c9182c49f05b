"""The gradient noise scale, measured along the first trial, or given."""

from __future__ import annotations

from typing import Any, Optional

from hvd_trainer.tune.trial import TrialResult


def read(first: TrialResult, given: Optional[float]) -> dict[str, Any]:
    """What is known of it.

    Args:
        first: the script as it is, to the target.
        given: --noise-scale; it wins.

    Example:
        >>> read(TrialResult("target met"), None)["note"]
        'undetermined: not measured; the square root is the middle of the search'
    """
    end = first.end
    found: dict[str, Any] = {
        "global_batch": first.start.get("global_batch"), "noise_scale": first.noise_scale, "low": end.get("noise_low"), "high": end.get("noise_high"),
        "curve": [[check["step"], check["samples"], check["noise"]] for check in first.checks if check.get("noise") is not None], "note": "",
    }  # fmt: skip
    if given is not None:
        return {**found, "noise_scale": given, "low": None, "high": None, "note": "as given by --noise-scale"}
    if first.noise_scale is None:
        found["note"] = f"undetermined: {end.get('noise_reason') or 'not measured'}; the square root is the middle of the search"
    return found
