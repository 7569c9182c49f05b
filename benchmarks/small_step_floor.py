"""What a small model's step costs without our Python: the same arithmetic and the same waits, and none of the guards.

    mpirun -np 2 --bind-to core python benchmarks/small_step_floor.py [--workload mlp] [--out FOLDER]

Beside compute-only and ours stand two bare steps on memory of the node, of which nothing is checked and nothing remembered:
"bare" adds up and updates all parameters on each rank, as ours does with a model of this size, with one wait; "bare shards" gives
each rank its share of sums and update, with two. Both carry what ours cannot leave out: a hook for each parameter, the
loss as a number, and the sum that shows whether all gradients are finite. Blocks of steps in turns; ratios block by block.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import hvd_trainer as ht  # noqa: E402
from hvd_trainer.bench import models, record, ways, workloads  # noqa: E402
from hvd_trainer.bench.stats import over_rounds  # noqa: E402
from hvd_trainer.comm.connect import init  # noqa: E402
from hvd_trainer.comm.node_memory import open_node_memory  # noqa: E402

COMPUTE, OURS, BARE, SHARDS = "compute", "ours", "bare", "bare shards"
BLOCKS, STEPS, COLD_STEPS = 12, 200, 3
Step = Callable[[object], None]  # of a batch


def compute(task: models.Task, comm: ht.Communicator) -> Step:
    """Every rank for itself."""

    def step(batch: object) -> None:
        task.optimizer.zero_grad()
        ways.backward(task.loss(task.model, batch)).item()
        task.optimizer.step()

    return step


def ours(task: models.Task, comm: ht.Communicator) -> Step:
    """The library."""
    opt = ht.DistributedOptimizer(task.optimizer, comm, lr_scaling="none", model=task.model)

    def step(batch: object) -> None:
        opt.zero_grad()
        opt.backward(task.loss(task.model, batch))
        opt.step()

    return step


def bare(task: models.Task, comm: ht.Communicator, shards: bool) -> Step:
    """SGD with momentum over flat float32 parameters; the ranks' batches count the same."""
    params = list(task.model.parameters())
    numel = -(-sum(param.numel() for param in params) // (16 * comm.size)) * 16 * comm.size
    sizes = [4 * numel] * (2 * comm.size + 1)
    memory, problem = open_node_memory(comm, sizes, 2, "floor")
    if memory is None:
        raise SystemExit(problem)
    flat = memory.tensor(numel, torch.float32)
    gradients = [[memory.tensor(numel, torch.float32) for _ in range(comm.size)] for _ in range(2)]
    if not shards:
        flat = torch.zeros(numel)
    if comm.rank == 0 or not shards:
        torch.cat([param.detach().reshape(-1) for param in params], out=flat[: sum(param.numel() for param in params)])
    comm.barrier("floor")
    views: list[list[torch.Tensor]] = [[], []]
    at = 0
    for param in params:
        end = at + param.numel()
        param.data = flat[at:end].view(param.shape)
        for turn in range(2):
            views[turn].append(gradients[turn][comm.rank][at:end].view(param.shape))
        param.register_post_accumulate_grad_hook(lambda param: None)
        at = end
    share = numel // comm.size
    mine = slice(comm.rank * share, (comm.rank + 1) * share) if shards else slice(0, numel)
    parts = [[each[mine] for each in gradients[turn]] for turn in range(2)]
    weights, mean = flat[mine], torch.empty_like(flat[mine])
    buffer = torch.zeros_like(mean)
    group = task.optimizer.param_groups[0]
    count = 0

    def step(batch: object) -> None:
        nonlocal count
        for param in params:
            param.grad = None
        ways.backward(task.loss(task.model, batch)).item()
        torch._C._set_grad_enabled(False)
        turn, count = count & 1, count + 1
        torch._foreach_copy_(views[turn], [param.grad for param in params])
        memory.post(0, count)
        memory.wait(0, count, "gradients")
        torch.add(parts[turn][0], parts[turn][1], out=mean)
        for part in parts[turn][2:]:
            mean.add_(part)
        mean.mul_(1 / comm.size)
        mean.sum().item()
        torch._fused_sgd_(
            [weights], [mean], [buffer], weight_decay=0.0, momentum=group["momentum"], lr=group["lr"], dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False, grad_scale=None, found_inf=None,
        )  # fmt: skip
        if shards:
            memory.post(1, count)
            memory.wait(1, count, "update")
        torch._C._set_grad_enabled(True)

    return step


KINDS = {COMPUTE: compute, OURS: ours, BARE: lambda *args: bare(*args, shards=False), SHARDS: lambda *args: bare(*args, shards=True)}


def measure(name: str, comm: ht.Communicator, steps: int) -> dict[str, list[float]]:
    """Milliseconds of a step: for each kind, the median of each block."""
    tasks = {kind: models.build(workloads.BY_NAME[name], comm.rank, comm.size) for kind in KINDS}
    step_of = {kind: KINDS[kind](task, comm) for kind, task in tasks.items()}
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for block in range(BLOCKS + 1):
        for kind, step in step_of.items():
            comm.barrier("block")
            stamps, batches = [], tasks[kind].batches
            for number in range(COLD_STEPS + steps):
                step(batches[number % len(batches)])
                stamps.append(time.perf_counter())
            if block:  # the first warms up
                found[kind].append(1e3 * median(b - a for a, b in zip(stamps[COLD_STEPS - 1 :], stamps[COLD_STEPS:])))
    return found


def main() -> None:
    """Measure, and let rank 0 write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="mlp", choices=sorted(workloads.BY_NAME))
    parser.add_argument("--steps", type=int, default=STEPS, help="of a block")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "records")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    comm = init(engine="mpi")
    found = measure(asked.workload, comm, asked.steps)
    rows = {}
    for kind, times in found.items():
        ratio = over_rounds([limit / each for limit, each in zip(found[COMPUTE], times)])
        rows[kind] = {"ms": median(times), "compute_over_it": ratio.mid, "range": [ratio.low, ratio.high]}
        comm.say(f"{asked.workload}, {kind:12} {rows[kind]['ms']:.3f} ms a step, compute-only / it {ratio.text()}")
    if comm.rank == 0:
        command = f"mpirun -np {comm.size} --bind-to core python benchmarks/small_step_floor.py --workload {asked.workload}"
        head = record.head("small-step-floor", command, {"ranks": comm.size, "threads": 1, "steps": asked.steps}, {})
        print(record.write(asked.out, {**head, "result": rows, "block_ms": found}))
    comm.close()


if __name__ == "__main__":
    main()
