"""What a rank does: reads the job, trains cells alone or together with the others, times steps. Started by run.py."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hvd_trainer as ht  # noqa: E402
from benchmarks.large_batch import share, train  # noqa: E402
from benchmarks.large_batch.cells import Cell, Row  # noqa: E402
from hvd_trainer.comm.single import SingleCommunicator  # noqa: E402
from hvd_trainer.cost import measure  # noqa: E402
from hvd_trainer.cost.samples import GRADIENT, LOCAL, STEP  # noqa: E402
from hvd_trainer.train.step import train_step  # noqa: E402

FLOAT32_BYTES = 4


def main(comm: Any) -> None:
    """All that the job asks for."""
    job = json.loads(Path(sys.argv[1]).read_text())
    folder, alone = Path(job["folder"]), SingleCommunicator()
    results = share.Results(folder, comm.rank)

    def the_task(model: str) -> train.Task:
        return train.task(model, job["data"], job["target"], job["num_valid"])

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    rows = [Row(**{**row, "cell": Cell(**row["cell"]), "seeds": tuple(row["seeds"])}) for row in job["rows"]]
    cells = [Cell(**cell) for cell in job["cells"]]
    share.run_shared(
        rows, [cell for cell in cells if cell.ranks == 1], results, lambda cell: train.run(cell, the_task(cell.model), alone), say
    )
    share.meet(folder, "alone", comm.rank, comm.size)
    done = dict(results.refresh())
    for cell in cells:
        if cell.ranks > 1 and cell.key not in done:
            found = train.run(cell, the_task(cell.model), comm)
            if comm.rank == 0:
                results.add(cell, found)
                say(share.text(cell, found))
    if job["times"]:
        times = step_times(job["times"], the_task("mlp"), comm, alone, lambda name: share.meet(folder, name, comm.rank, comm.size))
        if comm.rank == 0:
            (folder / "times.json").write_text(json.dumps(times))
    comm.barrier("done")


def step_times(wanted: dict[str, Any], the_task: train.Task, comm: Any, alone: Any, meet: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of steps at batches on one rank and on all, in turns, and of the messages alone.

    Args:
        wanted: "batches", "budget_s" for each of the three measurements, "lr".
        the_task: whose steps.
        comm: all ranks.
        alone: this rank by itself.
        meet: waits for the others without using a core.

    Returns:
        {"steps": [kind, micro-batch, ranks, seconds], "messages": [bytes, seconds]}.
    """
    found: dict[str, Any] = {"steps": [], "messages": []}
    batches, budget_s = wanted["batches"], wanted["budget_s"]
    if comm.rank == 0:
        actions = {(LOCAL, batch): stepper(batch, wanted["lr"], the_task, alone) for batch in batches}
        actions |= {(GRADIENT, batch): gradient(batch, the_task) for batch in batches}
        for (kind, batch), seconds in measure.in_turns(alone, actions, budget_s).items():
            found["steps"].append([kind, batch, 1, seconds])
    meet("local-times")
    together = {(STEP, batch): stepper(batch, wanted["lr"], the_task, comm) for batch in batches}
    for (kind, batch), seconds in measure.in_turns(comm, together, budget_s).items():
        found["steps"].append([kind, batch, comm.size, seconds])
    size = sum(p.numel() for p in the_task.make().parameters()) * FLOAT32_BYTES
    for sample in measure.measure_messages(comm, (size,), budget_s / 4):
        found["messages"].append([list(sample.sizes), sample.seconds])
    return found


def stepper(batch: int, lr: float, the_task: train.Task, comm: Any) -> Callable[[], None]:
    """A whole step with the look-up of its batch, one after another as in a training."""
    trainer, loader = train.make_trainer(Cell(batch, lr, 0, cap=1), the_task, comm, [])
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.fit(loader, steps=1)
    opt = ht.DistributedOptimizer(torch.optim.SGD(trainer.model.parameters(), lr=lr), comm, lr_scaling="none", plan=loader.plan, model=trainer.model)
    batches = (step for epoch in itertools.count() for step in loader.epoch(epoch))
    return lambda: train_step(trainer.model, trainer.loss_fn, next(batches), opt)


def gradient(batch: int, the_task: train.Task) -> Callable[[], None]:
    """Forward and backward alone."""
    model, loss_fn = the_task.make(), train.fashion_mlp.losses_of(*the_task.train)
    indices = torch.randint(0, len(the_task.train[1]), (batch,))

    def run() -> None:
        model.zero_grad()
        (loss_fn(model, indices).total / batch).backward()

    return run


if __name__ == "__main__":
    ht.run(main, engine="mpi", backend="mpi")
