"""Gradient norms taken inside of a DistributedOptimizer, for whoever observes them; nothing where nobody does.

Each micro-batch's gradient is looked at by a tensor hook, before it is added to what is there, so that the parts of a step
are its micro-batches on all ranks. The average is looked at where the ranks have just summed it, each rank at its share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.optim.gradient_norms import GradientNorms, NormsObserver, squares
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.shared_sums import my_slice


class NormsTap:
    """Collects one step's norms while it is computed and averaged, and hands them to the observers.

    Args:
        comm: the ranks.
        name: of the collective, unique in the job.
    """

    def __init__(self, comm: Communicator, name: str) -> None:
        self._comm, self._name = comm, name
        self.observers: list[NormsObserver] = []
        self._handles: list[Any] = []
        self._num_groups = 0
        self._asked_at, self._wanting = -1, []
        self._watching = False
        self._clear()

    def _clear(self) -> None:
        self._local: list[Union[float, torch.Tensor]] = [0.0] * self._num_groups  # sum of w |g|^2
        self._weight, self._num_parts, self._scaled_weight = 0.0, 0, 0.0

    def bind(self, params: Sequence[torch.nn.Parameter], groups: Sequence[int], num_groups: int) -> None:
        """Watch these parameters, each of the group beside it, and no others any more."""
        for handle in self._handles:
            handle.remove()
        self._num_groups = num_groups
        self._clear()
        self._handles = [param.register_hook(partial(self._on_grad, group)) for param, group in zip(params, groups)]

    def wants(self, step: int) -> bool:
        """Whether somebody wants the norms of this step (from 1); asked once a step."""
        if step != self._asked_at:
            self._asked_at, self._wanting = step, [observer for observer in self.observers if observer.wants_norms(step)]
        return bool(self._wanting)

    @contextlib.contextmanager
    def watching(self, step: int, weight: float, nominal: float, scale: float) -> Iterator[None]:
        """While the block runs, one part's backward does: of losses divided by `nominal` and multiplied by `scale`."""
        if not (weight > 0 and self.wants(step)):
            yield
            return
        self._seen: list[Union[float, torch.Tensor]] = [0.0] * self._num_groups
        self._watching = True
        try:
            yield
        finally:
            self._watching = False
        factor = (nominal / scale) ** 2 / weight
        self._local = [total + factor * found for total, found in zip(self._local, self._seen)]
        self._weight += weight
        self._num_parts += 1
        self._scaled_weight += scale * weight

    def report(self, step: int, reducer: Reducer) -> None:
        """The step is averaged, and nothing was clipped: reduce the norms and hand them out. A collective where they are wanted."""
        if not self.wants(step):
            return
        mean: list[Union[float, torch.Tensor]] = [0.0] * self._num_groups
        for bucket, flat in zip(reducer.buckets, reducer.way.results):
            first, last = my_slice(flat.numel(), self._comm.rank, self._comm.size)
            mean[bucket.group] = mean[bucket.group] + squares(flat[first:last])
        mine = self._as_vector([*self._local, *mean, self._weight, self._num_parts, self._scaled_weight])
        self._clear()
        found = self._comm.allreduce_(mine, self._name).wait().tolist()
        weight, num_parts, scaled_weight = found[2 * self._num_groups :]
        if not weight:  # losses of the user's own backward: their parts are not known
            return
        scale = (scaled_weight / weight) ** 2  # the average is still multiplied by the loss scale
        local_sq = tuple(value / weight for value in found[: self._num_groups])
        mean_sq = tuple(value / scale for value in found[self._num_groups : 2 * self._num_groups])
        norms = GradientNorms(local_sq, mean_sq, weight, round(num_parts))
        for observer in self._wanting:
            observer.observe(norms)

    def discard(self) -> None:
        """This step's gradients are thrown away."""
        self._clear()

    def _as_vector(self, values: list[Union[float, torch.Tensor]]) -> torch.Tensor:
        """Float64 on the ranks' device; nothing on a GPU is waited for."""
        if all(isinstance(value, (int, float)) for value in values):
            return torch.tensor(values, dtype=torch.float64, device=self._comm.device)
        return torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self._comm.device) for value in values])

    def _on_grad(self, group: int, grad: torch.Tensor) -> None:
        if self._watching:
            self._seen[group] = self._seen[group] + squares(grad)
