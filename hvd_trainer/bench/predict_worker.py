"""The measurements of `bench predict` on the ranks of one launch: `python -m hvd_trainer.bench.predict_worker JOB.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hvd_trainer.bench import models, ways
from hvd_trainer.bench.columns import Column
from hvd_trainer.bench.record import machine, versions
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.connect import init
from hvd_trainer.cost import measure
from hvd_trainer.cost.samples import GRADIENT, LOCAL, STEP, Measurements
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.buckets import DEFAULT_BUCKET_BYTES, ParamSpec, plan_buckets

NUMBERS_BYTES = 64  # the small vector that travels behind the buckets of every step
MESSAGES_SHARE = 0.4  # of the time; the rest is for steps


@dataclass(frozen=True)
class Job:
    """What a launch measures.

    Args:
        workload: as JSON.
        micro_batches: sizes of the timed steps; empty: a quarter of the workload's own up to twice it.
        budget_s: seconds, about, after the start.
        engine: of `ht.init`.
        out: file for the measurements, written by rank 0.
        bucket_bytes: of `ht.DistributedOptimizer`; 0: its default.
    """

    workload: dict[str, Any]
    micro_batches: tuple[int, ...]
    budget_s: float
    engine: str
    out: str
    bucket_bytes: int = 0


def main(path: Path) -> None:
    """Connect, measure, and let rank 0 write."""
    job = Job(**json.loads(path.read_text()))
    comm = init(engine=job.engine)
    found = measure_here(comm, Workload(**job.workload), tuple(job.micro_batches), job.budget_s, job.bucket_bytes)
    if comm.rank == 0:
        Path(job.out).write_text(found.as_json())
    comm.barrier("predict.end")
    comm.close()


def write_job(job: Job, path: Path) -> None:
    """As JSON."""
    path.write_text(json.dumps(asdict(job)))


def measure_here(
    comm: Communicator, workload: Workload, micro_batches: tuple[int, ...], budget_s: float, bucket_bytes: int = 0
) -> Measurements:
    """Messages and steps on the ranks of this job; the same result on all of them.

    Args:
        comm: the ranks, as many on each node.
        workload: what is trained.
        micro_batches, bucket_bytes: see `Job`.
        budget_s: seconds, about.

    Raises:
        ConfigError: nodes with different numbers of ranks, batches that cannot be cut.
    """
    task = models.build(workload, comm.rank, comm.size)
    own = num_samples(task.batches[0])
    sizes = micro_batches or tuple(sorted({max(1, own // 4), max(1, own // 2), own, 2 * own}))
    options = {"bucket_bytes": bucket_bytes} if bucket_bytes else {}
    buckets = bucket_sizes(task.model, **options)
    messages = measure.measure_messages(comm, buckets, MESSAGES_SHARE * budget_s) if comm.size > 1 else []
    steps = measure.measure_steps(comm, step_actions(comm, workload, task, sizes, options), (1 - MESSAGES_SHARE) * budget_s)
    about = {
        "ranks": comm.size, "nodes": comm.num_nodes, "threads": torch.get_num_threads(), "machine": machine(), "versions": versions(),
        "num_params": task.num_params, "rank_batch": own,
    }  # fmt: skip
    return Measurements(workload.name, comm.engine, comm.backend, buckets, tuple(messages), tuple(steps), (about,))


def step_actions(
    comm: Communicator, workload: Workload, task: models.Task, sizes: tuple[int, ...], options: dict[str, Any]
) -> dict[measure.StepKey, Callable[[], object]]:
    """The steps to time: the gradient alone, a whole step alone, and a whole step with all ranks, for each size."""
    column = Column("predict", "ours", "mpirun", "", options=options)
    alone = ways.compute(task, column, None)
    actions: dict[measure.StepKey, Callable[[], object]] = {}
    together = None
    if comm.size > 1:
        other = models.build(workload, comm.rank, comm.size)
        meeting = ways.Meeting(comm.rank, comm.size, lambda: comm.barrier("predict"), comm.close, comm)
        together = ways.ours(other, column, meeting)
    for size in sizes:
        batch = resized(task.batches, size)
        actions[GRADIENT, size, 1] = lambda batch=batch: ways.backward(task.loss(task.model, batch))
        actions[LOCAL, size, 1] = lambda batch=batch: alone(batch)
        if together is not None:
            actions[STEP, size, 1] = lambda batch=batch: together(batch)
    return actions


def bucket_sizes(model: torch.nn.Module, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> tuple[int, ...]:
    """Bytes of the messages that a step of `ht.DistributedOptimizer` sends over several nodes."""
    specs = [ParamSpec(n, tuple(p.shape), p.dtype, p.device) for n, p in model.named_parameters() if p.requires_grad]
    return (*(bucket.nbytes for bucket in plan_buckets(specs, bucket_bytes)), NUMBERS_BYTES)


def num_samples(batch: Any) -> int:
    """Length of the first tensor in a batch.

    Example:
        >>> num_samples((torch.zeros(3, 2), torch.zeros(3)))
        3
    """
    if isinstance(batch, torch.Tensor) and batch.dim():
        return len(batch)
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)) and batch:
        return num_samples(batch[0])
    raise ConfigError(f"a batch of {type(batch).__name__}", "tensors, or tuples, lists or dicts of them", "return such batches from make()")


def resized(batches: list[Any], size: int) -> Any:
    """A batch of `size` samples, from the beginning of the given ones, over again where they are too few.

    Example:
        >>> resized([(torch.arange(2), {"y": torch.arange(2)})], 3)
        (tensor([0, 1, 0]), {'y': tensor([0, 1, 0])})
    """
    first = batches[0]
    if isinstance(first, dict):
        return {key: resized([batch[key] for batch in batches], size) for key in first}
    if isinstance(first, (tuple, list)):
        return type(first)(resized([batch[i] for batch in batches], size) for i in range(len(first)))
    if not isinstance(first, torch.Tensor) or not first.dim():
        return first
    together = torch.cat(batches)
    return torch.cat([together] * -(-size // len(together)))[:size].contiguous()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
