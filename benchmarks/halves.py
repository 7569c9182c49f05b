"""Sums of 16-bit floats: the time of each way to send them, the latency of a small sum, and the error against float32.

    mpirun -np 2 --bind-to core python benchmarks/halves.py time       wide, narrow, and the whole tensor as float32
    mpirun -np 2 --bind-to core python benchmarks/halves.py latency    1 KB through the engine and through mpi4py itself
    python benchmarks/halves.py errors                                 gradients of a small model, 2 to 64 ranks

Samples of all ways are taken in turn, in bursts of 0.3 s as a realtime task (as root, where --realtime is given), so that
other work on the machine does not show in them. A sample is the mean of a few calls in a row, as buckets come, on the
slowest rank; medians of the samples are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from hvd_trainer.comm.connect import init
from hvd_trainer.comm.half_floats import add_rows

BURST_S, PAUSE_S = 0.3, 0.15
CALLS = 4  # in a row; ways in turn at each call would find their buffers out of the cache
KILOBYTES = (64, 256, 1024, 4096, 16384, 65536)


def be_realtime(on: bool) -> None:
    """Every thread of this process."""
    kind, priority = (os.SCHED_FIFO, 1) if on else (os.SCHED_OTHER, 0)
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), kind, os.sched_param(priority))


def interleaved(world, calls: dict[str, Callable[[], object]], seconds: float, realtime: bool) -> dict[str, float]:
    """Median seconds of each call, on rank 0."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.monotonic()
    while world.bcast(time.monotonic() - begin) < seconds:
        if realtime:
            be_realtime(True)
        burst = time.monotonic()
        while world.bcast(time.monotonic() - burst) < BURST_S:
            for name, call in calls.items():
                world.Barrier()
                start = time.perf_counter()
                for _ in range(CALLS):
                    call()
                samples[name].append((time.perf_counter() - start) / CALLS)
        if realtime:
            be_realtime(False)
        time.sleep(PAUSE_S)
    every = world.allgather(samples)
    return {name: statistics.median(map(max, zip(*[ranks[name] for ranks in every]))) for name in calls}


def measure_time(options: argparse.Namespace) -> None:
    comm = init("mpi", "mpi")
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    for dtype in (torch.float16, torch.bfloat16):
        for kilobytes in KILOBYTES:
            tensor = torch.zeros(kilobytes * 512, dtype=dtype)

            def whole(tensor: torch.Tensor = tensor) -> None:
                wide = tensor.float()
                world.Allreduce(MPI.IN_PLACE, wide.numpy())
                tensor.copy_(wide)

            def ours(wire: str, tensor: torch.Tensor = tensor) -> None:
                comm.half_wire = wire
                comm.allreduce_(tensor, "halves").wait()

            calls = {"whole": whole, "wide": lambda: ours("wide"), "narrow": lambda: ours("narrow")}
            found = interleaved(world, calls, options.seconds, options.realtime)
            comm.say(f"{dtype} {kilobytes:6} KB  " + "  ".join(f"{k} {v * 1e3:8.3f} ms" for k, v in found.items()))


def measure_latency(options: argparse.Namespace) -> None:
    comm = init("mpi", "mpi")
    from mpi4py import MPI

    world, tensor = MPI.COMM_WORLD.Dup(), torch.zeros(256)
    calls = {
        "mpi4py": lambda: world.Allreduce(MPI.IN_PLACE, tensor.numpy()),
        "ours": lambda: comm.allreduce_(tensor, "small").wait(),
    }
    found = interleaved(world, calls, options.seconds, options.realtime)
    ratio = found["ours"] / found["mpi4py"]
    comm.say(f"1 KB: mpi4py {found['mpi4py'] * 1e6:.2f} us, ours {found['ours'] * 1e6:.2f} us, ratio {ratio:.2f}")


def measure_errors(options: argparse.Namespace) -> None:
    """Mean gradients of a classifier of scikit-learn's digits, early and late in training, each rank with 32 samples."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    data, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(data / 16, dtype=torch.float32), torch.tensor(labels)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(401):
        if step in (0, 100, 400):
            for size in (2, 8, 64):
                report_errors(model, x, y, step, size)
        train_on(model, x, y, torch.randint(len(x), (64,)))
        optimizer.step()


def train_on(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(x[index]), y[index]).backward()
    return torch.cat([parameter.grad.view(-1) for parameter in model.parameters()])


def report_errors(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, step: int, size: int) -> None:
    generator = torch.Generator().manual_seed(step)
    gradients = torch.stack(
        [train_on(model, x, y, torch.randint(len(x), (32,), generator=generator)).clone() for _ in range(size)]
    )
    exact = gradients.double().mean(0)
    for dtype in (torch.float16, torch.bfloat16):
        rows, work = gradients.to(dtype), torch.empty_like(gradients[0])
        add_rows(rows, 1 / size, work, rows[0])
        error = rows[0].double() - exact
        used = exact != 0
        lost = (rows[0][used] == 0).double().mean().item()
        print(
            f"step {step:3} {size:2} ranks {str(dtype):14}  rms {error.norm() / exact.norm():.1e}  "
            f"max {error.abs().max() / exact.abs().max():.1e} of the largest  "
            f"median {(error[used] / exact[used]).abs().median():.1e} of each  lost to zero {lost:.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("time", "latency", "errors"))
    parser.add_argument("--seconds", type=float, default=3.0, help="for each size")
    parser.add_argument("--realtime", action="store_true")
    options = parser.parse_args()
    {"time": measure_time, "latency": measure_latency, "errors": measure_errors}[options.what](options)


if __name__ == "__main__":
    main()
