"""Numbers computed with numpy in float64, one JSON file a formula: `inputs`, `expected`, `rtol`, and the formula as text."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace


def vector(name):
    """The file's `inputs` and `expected` as dicts, and `rtol`."""
    data = json.loads((Path(__file__).parent / f"{name}.json").read_text())
    return SimpleNamespace(inputs=data["inputs"], expected=data["expected"], rtol=data["rtol"])
