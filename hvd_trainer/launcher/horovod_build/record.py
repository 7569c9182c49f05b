"""The note that a built Horovod carries: how it was built; `doctor` shows it, the installer compares its key."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

RECORD_NAME = "hvd_trainer_build.json"


def installed() -> dict[str, Any]:
    """The record of the Horovod that this Python would import; empty when there is none or no Horovod."""
    spec = importlib.util.find_spec("horovod")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        file = Path(folder) / RECORD_NAME
        if file.is_file():
            try:
                return json.loads(file.read_text())
            except ValueError:
                return {}
    return {}
