"""Starts an example and reads what it wrote; the examples' tests share this."""

import json

from tests.harness import ROOT, run_ranks

KEYS = {"ranks", "samples_per_s", "lr_peak"}  # in the result of every example


def run_example(name, launcher, num_ranks, file, *arguments, timeout_s=120, float64=False, **settings):
    """Run `examples/name` with `--set` for each of the settings; returns what was printed, and the result."""
    script = ["-m", "tests.examples.in_float64", name] if float64 else [ROOT / "examples" / name]
    sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [*script, "--json", file, *arguments, *sets]
    # One thread: on busy cores a small layer's second thread is waited for longer than it computes.
    done = run_ranks(launcher, num_ranks, command, timeout_s=timeout_s, env={"OMP_NUM_THREADS": "1"}).ok()
    result = json.loads(file.read_text())
    assert result.keys() >= KEYS
    assert result["ranks"] == num_ranks
    assert result["samples_per_s"] > 0
    return done, result
