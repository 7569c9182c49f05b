"""PyTorch-Ignite: `idist.auto_model` and an Engine."""

from __future__ import annotations

import time
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events

from benchmarks.peers.mean import mean, total


class IgniteLoop:
    """One `run` of the same Engine a turn."""

    def __init__(self, task: Any) -> None:
        model, optimizer = idist.auto_model(task.model), idist.auto_optim(task.optimizer)
        self.stamps: list[float] = []

        def update(engine: Engine, batch: Any) -> torch.Tensor:
            model.train()
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            mean(loss).backward()
            optimizer.step()
            return total(loss).detach()

        self.engine = Engine(update)
        self.engine.add_event_handler(Events.ITERATION_COMPLETED, lambda _: self.stamps.append(time.perf_counter()))

    def loop(self, batches: list[Any], losses: list[float] | None) -> list[float]:
        self.stamps.clear()
        keep = None
        if losses is not None:
            keep = self.engine.add_event_handler(Events.ITERATION_COMPLETED, lambda e: losses.append(float(e.state.output)))
        self.engine.run(batches, max_epochs=1)
        if keep is not None:
            keep.remove()
        return list(self.stamps)


def make(task: Any, column: Any, meeting: Any) -> IgniteLoop:
    if idist.get_world_size() != meeting.size:
        raise RuntimeError(f"Ignite sees {idist.get_world_size()} processes of {meeting.size}")
    return IgniteLoop(task)
