"""The reducer of the parameters that are trained now: made again where some were frozen, unfrozen or added."""

from __future__ import annotations

import weakref
from typing import Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.choose_way import WayChooser
from hvd_trainer.optim.gradient_norms import NormsObserver
from hvd_trainer.optim.norms_tap import NormsTap
from hvd_trainer.optim.param_holders import take_over
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.updater import Updater


class CurrentReducer:
    """Finds or makes the reducer, and binds to it who updates and who looks at norms.

    Args:
        optimizer: the user's.
        comm: the ranks.
        name: prefix of the collectives' names.
        names: of parameters by their id, for messages.
        bucket_bytes: see `plan_buckets`.
        ways: how gradients travel.
        updater: begins anew with each reducer, once `start_updates` was called.

    Attributes:
        reducer: the one that `find` returned last.
        norms: where somebody observes them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
        name: str,
        names: dict[int, str],
        bucket_bytes: int,
        ways: WayChooser,
        updater: Updater,
    ) -> None:
        self._optimizer, self._comm, self._name, self._names = optimizer, comm, name, names
        self._bucket_bytes, self._ways, self._updater = bucket_bytes, ways, updater
        self._updates_started = False
        self._reduced: list[int] = []
        self.reducer: Optional[Reducer] = None
        self.norms: Optional[NormsTap] = None

    def find(self, begins: bool = True) -> Reducer:
        """The reducer of all parameters that require gradients; a collective where it is made.

        Args:
            begins: a step begins here. Where it does not, parameters frozen since it began stay in: they have gradients, and
                torch uses them.

        Raises:
            ConfigError: there is no such parameter.
        """
        groups = self._optimizer.param_groups
        now = [id(p) for group in groups for p in group["params"] if p.requires_grad]
        if self.reducer is not None and (now == self._reduced or (not begins and set(now) < set(self._reduced))):
            return self.reducer
        if not now:
            raise ConfigError("the optimizer holds no trainable parameter", "at least one with requires_grad=True", "pass model.parameters(), or unfreeze something")
        if self.reducer is not None:
            self._unhook()
        params = [(p, number) for number, group in enumerate(groups) for p in group["params"] if p.requires_grad]
        named = [(self._names.get(id(p), f"param{place}"), p) for place, (p, _) in enumerate(params)]
        name = self._comm.unique_name(f"{self._name}.plan")
        self._updater.give_back()
        for param, _ in params:
            take_over(param)
        self.reducer = Reducer(named, self._comm, self._bucket_bytes, name, [number for _, number in params], self._ways.open)
        # Python's garbage collection does not see that a parameter leads to its hooks: these would live for ever.
        self._unhook = weakref.finalize(self, self.reducer.detach)
        self._unhook.atexit = False
        self._reduced = now
        self._bind_norms()
        if self._updates_started:
            self._updater.start(self.reducer, self._ways)
        return self.reducer

    def start_updates(self) -> None:
        """All ranks hold the same parameters and state from here on. A collective."""
        self._updates_started = True
        self._updater.start(self.reducer, self._ways)

    def release(self) -> None:
        """Give what the updater holds back; the next step makes a new reducer."""
        self._updater.give_back()
        self._reduced = []

    def keep_way(self, saved: Optional[str]) -> bool:
        """Sum as before the checkpoint was saved, where nothing else was asked for: other sums round differently. A collective.

        Args:
            saved: "shared" or "messages"; None where the checkpoint says nothing of it.

        Returns:
            Whether gradients take another way from here on.
        """
        ways = self._ways
        if ways.wanted != "auto" or saved in (None, ways.taken) or (saved == "shared" and ways.obstacle(self._comm)):
            return False
        ways.saved, self._reduced = saved, []
        self.find()
        return True

    def observe_norms(self, observer: NormsObserver) -> None:
        """See `DistributedOptimizer.add_norms_observer`."""
        if self.norms is None:
            self.norms = NormsTap(self._comm, f"{self._name}.norms")
            self._bind_norms()
        self.norms.observers.append(observer)

    def _bind_norms(self) -> None:
        if self.norms is not None and self.reducer is not None:
            groups = [spec.group for spec in self.reducer.specs]
            self.norms.bind(self.reducer.params, groups, len(self._optimizer.param_groups))
