"""The columns' training steps, each as its library's documentation tells people to write it.

A way is a function `(task, column, meeting) -> step`, where `step(batch)` does one whole training step and returns the
loss of this rank. A library that has a loop of its own gives a `Loop` instead. `Meeting` is what the ranks of one launch
have in common: they start an engine once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Union

import torch

from hvd_trainer.bench.columns import Column
from hvd_trainer.bench.models import Task
from hvd_trainer.values import Weighted

RAW_BUCKET_FLOATS = 65_536
Step = Callable[[Any], torch.Tensor]


class Loop(Protocol):
    """A library's own loop over batches."""

    def loop(self, batches: list[Any], losses: list[float] | None) -> list[float]:
        """Train on all batches, one step each.

        Args:
            batches: at least one.
            losses: gets the loss of each step; None: only time counts.

        Returns:
            `time.perf_counter()` at the end of each step.
        """


Way = Callable[..., Union[Step, Loop]]


@dataclass
class Meeting:
    """How the ranks of a launch meet.

    Args:
        rank, size: of this process.
        barrier: returns when all ranks have come.
        close: leaves the engine in good order.
        handle: what the ways need: our Communicator, Horovod's module, torch.distributed or mpi4py's MPI.
    """

    rank: int
    size: int
    barrier: Callable[[], None]
    close: Callable[[], None]
    handle: Any


def meet(columns: tuple[Column, ...]) -> Meeting:
    """Start the one engine that the columns of a launch need."""
    ours = [column for column in columns if column.way == "ours"]
    if ours:
        from hvd_trainer.comm.connect import init

        comm = init(engine=ours[0].engine)
        return Meeting(comm.rank, comm.size, lambda: comm.barrier("bench"), comm.close, comm)
    if columns[0].way == "horovod":
        import horovod.torch as hvd

        hvd.init()
        return Meeting(hvd.rank(), hvd.size(), hvd.barrier, hvd.shutdown, hvd)
    if columns[0].line.startswith("torchrun") or columns[0].way == "ddp":
        from torch import distributed

        distributed.init_process_group("gloo", **({} if columns[0].line.startswith("torchrun") else meeting_place()))
        return Meeting(
            distributed.get_rank(),
            distributed.get_world_size(),
            distributed.barrier,
            distributed.destroy_process_group,
            distributed,
        )
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return Meeting(world.rank, world.size, world.Barrier, lambda: None, MPI)


def meeting_place() -> dict[str, Any]:
    """What torchrun would have told torch.distributed, where mpirun started the ranks."""
    from hvd_trainer import env
    from hvd_trainer.comm import launched, rendezvous

    variables = env.snapshot()
    started = launched.read(variables)
    where = rendezvous.method(started, variables) or "tcp://127.0.0.1:0"  # one rank alone needs a place, too
    return {"init_method": where, "rank": started.rank, "world_size": started.size}


def backward(loss: Weighted | torch.Tensor) -> torch.Tensor:
    """The backward pass of a mean loss, for everybody but us; returns the total.

    The division goes into the first gradient: no column pays for an operation that another does not have.
    """
    if not isinstance(loss, Weighted):
        loss.backward()
        return loss
    torch.autograd.backward(loss.total, torch.full_like(loss.total, 1.0 / loss.weight))
    return loss.total


def compute(task: Task, column: Column, meeting: Meeting) -> Step:
    """The bound: the step of one process, in every rank at the same time, without any communication."""
    model, optimizer, loss_fn = task.model, task.optimizer, task.loss

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        total = backward(loss_fn(model, batch))
        optimizer.step()
        return total

    return step


def ours(task: Task, column: Column, meeting: Meeting) -> Step:
    """`ht.DistributedOptimizer`; the learning rate is left as it is, so that all columns train alike."""
    from hvd_trainer.optim.distributed import DistributedOptimizer

    model, loss_fn = task.model, task.loss
    arguments = {"lr_scaling": "none", "loss_reduction": "mean", "model": model, **column.options}
    optimizer = DistributedOptimizer(task.optimizer, meeting.handle, **arguments)

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        optimizer.backward(loss)
        optimizer.step()
        return loss.total if isinstance(loss, Weighted) else loss

    return step


def horovod(task: Task, column: Column, meeting: Meeting) -> Step:
    """`hvd.DistributedOptimizer`, as in Horovod's PyTorch guide."""
    hvd, model, loss_fn = meeting.handle, task.model, task.loss
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(task.optimizer, named_parameters=model.named_parameters())

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        total = backward(loss_fn(model, batch))
        optimizer.step()
        return total

    return step


def ddp(task: Task, column: Column, meeting: Meeting) -> Step:
    """torch's DistributedDataParallel with its defaults."""
    model, optimizer, loss_fn = torch.nn.parallel.DistributedDataParallel(task.model), task.optimizer, task.loss

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        total = backward(loss_fn(model, batch))
        optimizer.step()
        return total

    return step


def raw_mpi(task: Task, column: Column, meeting: Meeting) -> Step:
    """The least that averages at all: gradients as views of flat buckets, each summed by MPI_Allreduce when complete.

    No checks, no weights, no unused parameters: what our own engine is measured against besides the bound. Buckets are
    filled from the last parameter on, which is the order in which backward finishes them.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD.Dup()
    params = [p for p in reversed(list(task.model.parameters())) if p.requires_grad]
    flats: list[torch.Tensor] = []
    for group in in_buckets(params):
        flat = torch.zeros(sum(p.numel() for p in group))
        memory = [MPI.memory.fromaddress(flat.data_ptr(), flat.numel() * 4), flat.numel(), MPI.FLOAT]
        waiting = [len(group)]
        at = 0
        for p in group:
            p.grad = flat[at : at + p.numel()].view_as(p)
            at += p.numel()

            def ready(_: Any, waiting: list[int] = waiting, memory: list = memory, count: int = len(group)) -> None:
                waiting[0] -= 1
                if not waiting[0]:
                    waiting[0] = count
                    world.Allreduce(MPI.IN_PLACE, memory)

            p.register_post_accumulate_grad_hook(ready)
        flats.append(flat)
    model, optimizer, loss_fn, share = task.model, task.optimizer, task.loss, 1.0 / meeting.size

    def step(batch: Any) -> torch.Tensor:
        for flat in flats:
            flat.zero_()
        loss = loss_fn(model, batch)
        total, weight = (loss.total, loss.weight) if isinstance(loss, Weighted) else (loss, 1.0)
        torch.autograd.backward(total, torch.full_like(total, share / weight))
        optimizer.step()
        return total

    return step


def in_buckets(params: list[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    """Neighbours together, up to `RAW_BUCKET_FLOATS`; a larger one is alone."""
    groups: list[list[torch.nn.Parameter]] = []
    room = 0
    for p in params:
        if p.numel() > room:
            groups.append([])
            room = RAW_BUCKET_FLOATS
        groups[-1].append(p)
        room -= p.numel()
    return groups


BY_NAME: dict[str, Way] = {
    "compute": compute,
    "ours": ours,
    "horovod": horovod,
    "ddp": ddp,
    "raw_mpi": raw_mpi,
}
