"""What measuring the noise scale costs in a step: the step with it and without it, in turns, and a record of all samples.

    mpirun -np 2 --bind-to core python benchmarks/noise_overhead.py [--out FOLDER]

Every other step is measured along: the norms of each gradient, their sum over the ranks, and the running averages of
`ht.NoiseScale`. Blocks of steps, so that what one step leaves in the caches does not count for the other kind. The cost is
the ratio of the medians, block by block; its median and range over the blocks are printed and kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import hvd_trainer as ht  # noqa: E402
from hvd_trainer.bench import models, record, workloads  # noqa: E402
from hvd_trainer.bench.stats import over_rounds  # noqa: E402
from hvd_trainer.comm.connect import init  # noqa: E402

WORKLOADS = {"mlp": 200, "cnn": 12, "transformer": 8, "wide": 8}  # and steps of a block
BLOCKS, COLD_STEPS = 10, 2
ON, OFF = "measured along", "not"


class Observer:
    """A NoiseScale that can be told to look away."""

    def __init__(self) -> None:
        self.noise, self.looks, self.step = ht.NoiseScale(), False, 0

    def wants_norms(self, step: int) -> bool:
        return self.looks

    def observe(self, norms: object) -> None:
        self.step += 1
        self.noise.average.add(norms, 2 * workloads.RANK_BATCH, self.step)


def measure(name: str, comm: ht.Communicator) -> dict[str, list[float]]:
    """Milliseconds of a step: for each kind, the median of each block."""
    task = models.build(workloads.BY_NAME[name], comm.rank, comm.size)
    opt = ht.DistributedOptimizer(task.optimizer, comm, lr_scaling="none", model=task.model)
    observer = Observer()
    opt.add_norms_observer(observer)
    found: dict[str, list[float]] = {ON: [], OFF: []}
    for block in range(2 * (BLOCKS + 1)):
        observer.looks = bool(block % 2)
        stamps = []
        for number in range(COLD_STEPS + WORKLOADS[name]):
            batch = task.batches[number % len(task.batches)]
            opt.zero_grad()
            opt.backward(task.loss(task.model, batch))
            opt.step()
            stamps.append(time.perf_counter())
        if block >= 2:  # the first pair warms up
            found[ON if observer.looks else OFF].append(1e3 * median(b - a for a, b in zip(stamps[COLD_STEPS - 1 :], stamps[COLD_STEPS:])))
    return found


def main() -> None:
    """Measure all, and let rank 0 write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    comm = init()
    samples, rows = {}, {}
    for name in WORKLOADS:
        samples[name] = measure(name, comm)
        cost = over_rounds([100 * (on / off - 1) for on, off in zip(samples[name][ON], samples[name][OFF])])
        rows[name] = {"off_ms": median(samples[name][OFF]), "on_ms": median(samples[name][ON]), "percent": cost.mid, "percent_range": [cost.low, cost.high]}
        comm.say(f"{name}: {rows[name]['off_ms']:.3g} ms a step, {cost.mid:+.2f} % with the noise scale ({cost.low:+.2f} .. {cost.high:+.2f})")
    if comm.rank == 0:
        head = record.head("noise-overhead", "mpirun -np 2 --bind-to core python benchmarks/noise_overhead.py", {"ranks": comm.size, "threads": 1}, {})
        print(record.write(asked.out, {**head, "result": rows, "block_ms": samples}))
    comm.close()


if __name__ == "__main__":
    main()
