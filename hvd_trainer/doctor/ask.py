"""Ask a Python process of its own, and take its answer as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

_MARK = "ANSWER"


def ask(code: str, timeout_s: float = 60.0) -> tuple[dict[str, Any], str]:
    """Run a piece of Python that fills a dictionary named `answer`.

    Args:
        code: the question.
        timeout_s: after so many seconds the process is killed.

    Returns:
        The answer and an empty text; or an empty answer and one line saying why there is none.

    Example:
        >>> ask("answer['two'] = 1 + 1")
        ({'two': 2}, '')
    """
    program = f"answer = {{}}\n{code}\nimport json\nprint('{_MARK}' + json.dumps(answer))\n"
    # From an empty folder: what lies in the caller's must not be taken for a package.
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-c", program],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {}, f"no answer within {timeout_s:.0f} s"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            return json.loads(line[len(_MARK) :]), ""
    lines = done.stderr.strip().splitlines()
    if done.returncode < 0:
        return {}, f"ended by signal {-done.returncode}" + (f": {lines[-1]}" if lines else "")
    return {}, lines[-1] if lines else f"exit code {done.returncode}"


def output(*command: str, timeout_s: float = 20.0) -> str:
    """What a program prints; empty when it cannot be run."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr
