"""Starts an example and reads what it wrote; the examples' tests share this."""

import contextlib
import io
import json
from pathlib import Path

import torch

from tests.examples.as_program import run_path
from tests.harness import ROOT, run_ranks

KEYS = {"ranks", "samples_per_s", "lr_peak"}  # in the result of every example
# One thread: on busy cores a small layer's second thread is waited for longer than it computes.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def run_example(name, launcher, num_ranks, file, *arguments, timeout_s=120, float64=False, **settings):
    """Run `examples/name` with `--set` for each of the settings; returns what was printed, and the result."""
    script = ["-m", "tests.examples.in_float64", name] if float64 else [ROOT / "examples" / name]
    command = [*script, *words(file, *arguments, **settings)]
    done = run_ranks(launcher, num_ranks, command, timeout_s=timeout_s, env=ONE_THREAD).ok()
    return done.stdout, read(file, num_ranks)


def run_here(name, file, *arguments, float64=False, **settings):
    """The same on one rank, in this process: a start of its own would import torch for seconds."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        run_path(ROOT / "examples" / name, words(file, *arguments, **settings), torch.float64 if float64 else torch.float32)
    return printed.getvalue(), read(file, 1)


def words(file, *arguments, **settings):
    """The command line behind the example's name."""
    return ["--json", str(file), *map(str, arguments), *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def read(file, num_ranks):
    """The result that rank 0 wrote."""
    result = json.loads(Path(file).read_text())
    assert result.keys() >= KEYS
    assert result["ranks"] == num_ranks
    assert result["samples_per_s"] > 0
    return result
