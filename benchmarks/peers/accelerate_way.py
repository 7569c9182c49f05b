"""Hugging Face Accelerate: `prepare`, `backward`, and its wrapped optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator

from benchmarks.peers.mean import mean, total


def make(task: Any, column: Any, meeting: Any) -> Callable[[Any], torch.Tensor]:
    accelerator = Accelerator(cpu=True)
    if accelerator.num_processes != meeting.size:
        raise RuntimeError(f"Accelerate sees {accelerator.num_processes} processes of {meeting.size}")
    model, optimizer = accelerator.prepare(task.model, task.optimizer)

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        accelerator.backward(mean(loss))
        optimizer.step()
        return total(loss)

    return step
