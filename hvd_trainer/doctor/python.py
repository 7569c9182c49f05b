"""Is the interpreter one that the rest is made for?"""

from __future__ import annotations

import sys

from hvd_trainer.doctor.finding import Finding


def check() -> Finding:
    """Python 3.10 to 3.13."""
    version = ".".join(map(str, sys.version_info[:3]))
    good = (3, 10) <= sys.version_info[:2] <= (3, 13)
    return Finding(
        "python",
        "ok" if good else "warn",
        f"{version} at {sys.executable}",
        "" if good else "3.10 to 3.13 are tested: make setup PYTHON=python3.12",
        {"version": version},
    )
