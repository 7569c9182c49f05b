"""One process, nobody to talk to: for notebooks and small data, and the oracle that tests compare N ranks with."""

from __future__ import annotations

from typing import Any

import torch

from hvd_trainer.comm import guard
from hvd_trainer.comm.api import Communicator, Pending, Topology


class SingleCommunicator(Communicator):
    """The job of one rank: every collective is the identity, but for the scale of a sum."""

    engine = "single"
    backend = "none"

    def __init__(self, device: torch.device | None = None, timeout_s: float = 600.0, checked: bool = False) -> None:
        super().__init__(Topology(), device or torch.device("cpu"), timeout_s, checked)

    def _allreduce_(self, tensor: torch.Tensor, name: str, op: str, scale: float) -> Pending:
        if scale != 1.0:
            tensor.detach().mul_(scale)
        return Pending(tensor)

    def _broadcast_(self, tensor: torch.Tensor, root: int, name: str) -> None:
        pass

    def _gather_objects(self, obj: Any, name: str) -> list[Any]:
        return [obj]

    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any:
        return obj

    def _barrier(self, name: str) -> None:
        pass

    def abort(self, code: int) -> None:
        guard.exit_now(code)
