"""Ask the installed Horovod, in a process of its own, whether it loads and what it was built with."""

from __future__ import annotations

import json
import subprocess
import tempfile
from typing import Any

from hvd_trainer.launcher.horovod_build.settings import Settings

_QUESTION = """
import json
import horovod, horovod.torch as hvd
print("ANSWER" + json.dumps({"version": horovod.__version__, "mpi": bool(hvd.mpi_built()),
                             "gloo": bool(hvd.gloo_built()), "nccl": bool(hvd.nccl_built())}))
"""


def verify(settings: Settings, timeout_s: float = 180.0) -> tuple[dict[str, Any], str]:
    """Import Horovod and ask.

    Returns:
        What it says (`version`, `mpi`, `gloo`, `nccl`) and an empty text; or an empty answer and why it failed.
    """
    # Elsewhere than in the caller's folder, where something else may be called horovod.
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [settings.python, "-c", _QUESTION],
                cwd=folder,
                env=settings.base_env,
                text=True,
                capture_output=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}, f"importing horovod.torch took more than {timeout_s:.0f} s"
    for line in done.stdout.splitlines():
        if line.startswith("ANSWER"):
            return json.loads(line[len("ANSWER") :]), ""
    lines = done.stderr.strip().splitlines()
    return {}, lines[-1] if lines else f"exit code {done.returncode}"
