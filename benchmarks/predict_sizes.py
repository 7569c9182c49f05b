"""Checks the step-time model on micro-batches that its fit has not seen, two ranks on this machine, real models.

    python benchmarks/predict_sizes.py [--workload mlp cnn transformer wide] [--out benchmarks/records]

All sizes are measured in turns in one launch; the fit gets every other one. Printed is predicted over measured of whole steps
with their communication, and the median of the absolute errors (the bar is 10 %).
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from hvd_trainer.bench import record, start
from hvd_trainer.bench.predict import Forecast
from hvd_trainer.bench.predict_worker import Job, write_job
from hvd_trainer.bench.workloads import BY_NAME
from hvd_trainer.cost.samples import STEP, Measurements

ROOT = Path(__file__).resolve().parents[1]
SIZES, HELD_OUT = (4, 8, 16, 24, 32, 48, 64), (8, 24, 48)
BAR = 0.10


def measure(name: str, budget_s: float) -> Measurements:
    """One launch on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        job, out = Path(folder, "job.json"), Path(folder, "found.json")
        write_job(Job(asdict(BY_NAME[name]), SIZES, budget_s, "auto", str(out)), job)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        argv = [Path(sys.executable).parent / "mpirun", "-np", 2, "--bind-to", "core", sys.executable, "-m", "hvd_trainer.bench.predict_worker", job]
        ended = start.run([str(word) for word in argv], env, 400.0)
        if ended.code != 0:
            raise SystemExit(f"{name}: exit code {ended.code}\n{ended.tail}")
        return Measurements.read(out)


def check(found: Measurements) -> list[dict]:
    """Held-out steps, from a fit to the others."""
    seen = replace(found, steps=tuple(s for s in found.steps if s.micro_batch not in HELD_OUT))
    forecast = Forecast(seen, num_draws=30)
    rows = []
    for sample in found.steps:
        if sample.kind == STEP and sample.micro_batch in HELD_OUT:
            guess = forecast.row(2, 2, sample.micro_batch).step
            rows.append({
                "workload": found.workload, "micro_batch": sample.micro_batch, "predicted_ms": round(guess.value * 1e3, 3),
                "measured_ms": round(sample.typical_s * 1e3, 3), "error": round(guess.value / sample.typical_s - 1, 4),
            })  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", nargs="+", default=["mlp", "cnn", "transformer", "wide"], choices=sorted(BY_NAME))
    parser.add_argument("--budget", type=float, default=25.0, help="seconds of measuring for each workload")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/records")
    given = parser.parse_args()
    command = shlex.join(["python", "benchmarks/predict_sizes.py", *sys.argv[1:]])
    head = record.head("predict-sizes", command, {"sizes": SIZES, "held_out": HELD_OUT, "budget_s": given.budget}, {})
    rows, samples = [], {}
    for name in given.workload:
        found = measure(name, given.budget)
        samples[name] = asdict(found)
        for row in check(found):
            rows.append({**row, "load": round(os.getloadavg()[0], 1)})
            print("{workload:12} micro-batch {micro_batch:3}  predicted {predicted_ms:9.3f} ms  measured {measured_ms:9.3f} ms  {error:+.1%}  load {load}".format(**rows[-1]), flush=True)
    middle = statistics.median(abs(row["error"]) for row in rows)
    print(f"median absolute error {middle:.1%} on {len(rows)} sizes that were not fitted")
    path = record.write(given.out, {**head, "bar": BAR, "median_absolute_error": middle, "result": {"rows": rows}, "samples": samples})
    print(path.name)
    return 0 if middle <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
