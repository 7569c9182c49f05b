"""Who updates the parameters when their gradients are averaged: each rank all of them, tensor by tensor or in flat buffers, or
each its share.
"""

from __future__ import annotations

import math
import weakref
from typing import Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.log import say
from hvd_trainer.optim import step_errors
from hvd_trainer.optim.choose_way import AS_SAVED, WayChooser, check_choice
from hvd_trainer.optim.clip import check_limit, clip_norm_, clip_value_
from hvd_trainer.optim.flat_refusal import refusal
from hvd_trainer.optim.flat_update import FlatUpdate
from hvd_trainer.optim.param_holders import unshare
from hvd_trainer.optim.pieces import LAYERWISE
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.shared_sums import SharedSums
from hvd_trainer.optim.ways import Sums

UPDATES = ("auto", "shards", "tensors")
CLIP_EPS = 1e-6  # as torch's clip_grad_norm_ has it
# In `Numbers.aside`, of a rank that would go on in flat buffers, but has other state than these: sums of it stay below 1, which a
# rank that must see whole gradients adds, and are exact.
OUTDATED = 2.0**-20


class Updater:
    """Clips the mean gradient and lets the optimizer step.

    Args:
        optimizer: the user's.
        comm: the ranks.
        name: of the collectives.
        wanted: "auto", "shards" or "tensors"; see `DistributedOptimizer`.
        clip_norm, clip_value: likewise.

    Attributes:
        flat: the update in flat buffers; None where the optimizer steps over the model's tensors.
        text: in words, who updates.
        clip_value: may be changed between steps.
        last_grad_norm: before clipping; None without `clip_norm`.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, comm: Communicator, name: str, wanted: str, clip_norm: Optional[float], clip_value: Optional[float]
    ) -> None:
        check_choice("update_by", wanted, UPDATES)
        check_limit("clip_norm", clip_norm)
        check_limit("clip_value", clip_value)
        self._optimizer, self._comm, self._name, self._wanted = optimizer, comm, name, wanted
        self._clip_norm, self.clip_value = clip_norm, clip_value
        self.flat: Optional[FlatUpdate] = None
        self.text = ""
        self.last_grad_norm: Optional[float] = None
        self._reducer: Optional[Reducer] = None
        self._when_dropped: Optional[weakref.finalize] = None

    @property
    def clip_norm(self) -> Optional[float]:
        """May be changed between steps."""
        return self._clip_norm

    @clip_norm.setter
    def clip_norm(self, limit: Optional[float]) -> None:
        check_limit("clip_norm", limit)
        self._clip_norm = limit
        if self._is_shared():  # other ranks may be in the middle of this step: from the next one on, on all
            self._reducer.way.wants_squares = self._wants_squares()

    def start(self, reducer: Reducer, ways: WayChooser) -> None:
        """Update what this reducer averages: in flat buffers, or in shards of them, where that is wanted and exact. A collective.

        Raises:
            ConfigError: shards are wanted, and cannot be had.
        """
        self._reducer, self.flat = reducer, None
        name = self._comm.unique_name(f"{self._name}.flat")
        reason = self._agree(self._against_flat(), name)
        if not reason:
            flat = FlatUpdate(self._optimizer, reducer, self._comm, name)
            reason = flat.problem
            if reason:
                flat.give_back()
            else:
                self.flat = flat
                if flat.shared:
                    self._when_dropped = weakref.finalize(self, flat.give_back)
                    self._when_dropped.atexit = False
        is_shared = self._is_shared()
        if is_shared:
            reducer.way.squares = reducer.way.wants_squares = self._wants_squares()
        if self._wanted == "shards" and (reason or not is_shared):
            raise ConfigError(
                f'update_by="shards", but {reason or "gradients go through " + ways.why}',
                "an optimizer that works element by element, and gradients through memory of one node",
                'leave update_by="auto"',
            )
        self._describe(reason)

    def stop(self, reason: str) -> None:
        """From now on every rank updates all parameters; where they were shared, all ranks come here in the same step."""
        was_shared = self.flat.shared
        self.give_back()
        self._wanted = "tensors"
        if was_shared:
            self._reducer.way.wants_squares = False
            say(f"hvd_trainer: from {self._comm.where} on each rank updates all parameters ({reason})", rank=self._comm.rank)
        self._describe(reason)

    @property
    def to_save(self) -> Optional[str]:
        """What a checkpoint says of it: "tensors" where that was asked for, or became necessary; else None."""
        return "tensors" if self._wanted == "tensors" else None

    def keep(self, saved: Optional[str]) -> None:
        """Update as before the checkpoint was saved, where nothing else was asked for: the other way rounds differently.

        Args:
            saved: the same on all ranks.
        """
        if saved == "tensors" and self._wanted == "auto":
            if self.flat is not None:
                self.stop(AS_SAVED)
            self._wanted = "tensors"

    def give_back(self) -> None:
        """Parameters and state become each rank's own."""
        if self.flat is not None:
            self.flat.give_back()
            self.flat = None
        if self._when_dropped is not None:  # it would keep this update, and all its memory
            self._when_dropped.detach()
            self._when_dropped = None

    def forget_guard(self) -> None:
        """All ranks are about to write the same into the parameters (a checkpoint is loaded)."""
        if self.flat is not None:
            self.flat.forget_guard()

    def look(self, wants_whole: str) -> tuple[str, float, float]:
        """Before the averaging, what this rank sees alone and all must know.

        Args:
            wants_whole: the caller's own reason why it must see whole gradients, "" for none.

        Returns:
            Why it must, what `Numbers.aside` says of that, and `Numbers.changed` of who else has written to what ranks share.
        """
        flat = self.flat
        if flat is None:
            return wants_whole, float(bool(wants_whole)), 0.0
        wants_whole = (wants_whole if flat.shared else "") or flat.is_stale()
        if wants_whole:
            return wants_whole, 1.0, flat.changes()
        return "", OUTDATED if flat.is_outdated() else 0.0, flat.changes()

    def settle(self, sums: Sums, wants_whole: str) -> None:
        """After the averaging: go on in flat buffers, or end that, the same on all ranks that share them.

        Raises:
            CollectiveError: the optimizer's state or momentum was replaced, and differs between the ranks; on all ranks.
            LossError: its state was changed in place where it is not one rank's alone; on all ranks.
        """
        if self.flat is None:
            return
        if sums.changed:
            self.flat.check_writes()
        if sums.aside >= 1.0:
            self.stop(wants_whole or "another rank must see whole gradients")
        elif not self._reducer.places.all_used:
            self.stop("a parameter has no gradient, or a sparse one")
        elif sums.aside or sums.changed:  # a number that was set to 0 has copies of this rank's own, which follow
            problem = self.flat.take_state()
            if problem:
                self.stop(problem)

    def step(self, synchronized: bool, in_window: bool) -> None:
        """Clip, and update.

        Args:
            synchronized: the means were delivered already.
            in_window: the gradients come from `opt.backward`.
        """
        if self.flat is not None and synchronized and not self._reducer.places.are_delivered():
            self.stop("gradients were replaced by others")
        if self.flat is None:
            self._by_tensors(synchronized)
        elif self.flat.shared:
            self._by_shards(self.flat, in_window)
        else:
            if not synchronized:
                self._reducer.places.show()
            self._clip()
            self.flat.step()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _by_tensors(self, synchronized: bool) -> None:
        if not synchronized:
            self._reducer.places.deliver()
        self._clip()
        self._reducer.places.make_sparse()
        unshare(self._reducer.params)
        self._optimizer.step()

    def _by_shards(self, flat: FlatUpdate, in_window: bool) -> None:
        factor = 1.0
        if self._clip_norm is not None:
            self.last_grad_norm = math.sqrt(self._reducer.way.sum_of_squares())
            if not math.isfinite(self.last_grad_norm):
                step_errors.raise_norm(self.last_grad_norm, self._comm)
            factor = min(1.0, self._clip_norm / (self.last_grad_norm + CLIP_EPS))
        flat.step(factor, self.clip_value)
        if in_window:
            self._reducer.places.show()
        else:  # the next loss.backward() adds to what it finds
            self._reducer.places.deliver()

    def _clip(self) -> None:
        if self._clip_norm is not None:
            self.last_grad_norm = clip_norm_(self._reducer.params, self._clip_norm)
            if not math.isfinite(self.last_grad_norm):
                step_errors.raise_norm(self.last_grad_norm, self._comm)
        if self.clip_value is not None:
            clip_value_(self._reducer.params, self.clip_value)

    def _is_shared(self) -> bool:
        return self._reducer is not None and isinstance(self._reducer.way, SharedSums)

    def _wants_squares(self) -> bool:
        """Whether the pass that checks for NaN sums squares instead, where nobody else could: no rank sees all of a divided gradient."""
        return self._clip_norm is not None and self.flat is not None

    def _agree(self, reason: str, name: str) -> str:
        """The first rank's that has one: a hook on one rank alone must not let it step in another way than the others."""
        if self._comm.size == 1:
            return reason
        return next((each for each in self._comm.gather_objects(reason, f"{name}.reason") if each), "")

    def _against_flat(self) -> str:
        if self._wanted == "tensors":
            return "as asked"
        if self._comm.size == 1:
            return "one rank"
        if any(param.device.type != "cpu" for param in self._reducer.params):
            return "parameters on a GPU"
        if type(self._optimizer) in LAYERWISE and not isinstance(self._reducer.way, SharedSums):
            return f"{type(self._optimizer).__name__} gains nothing in flat buffers that are not shared"
        return refusal(self._optimizer, self._reducer.params)

    def _describe(self, reason: str) -> None:
        self.text = "; each rank updates all parameters"
        if self.flat is not None and self.flat.shared:
            self.text = f"; each rank updates 1/{self._reducer.way.num_shares} of the parameters"
            if self.flat.is_layerwise:
                self.text += ", norms of layers are summed over the shares"
        elif isinstance(self._reducer.way, SharedSums):
            self.text += f" ({reason})"
