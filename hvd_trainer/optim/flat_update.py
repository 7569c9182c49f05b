"""The update in flat buffers laid out like the buckets of gradients, by each rank for all of it or for its share.

Parameters and the optimizer's state lie in flat buffers; an optimizer of the user's class with the user's options steps over
a few long pieces instead of many tensors. The user's optimizer sees all of it: its parameters and its state are views of the
same memory, so that `state_dict()` is the ordinary one.

Where gradients go through memory of the node, the flat buffers lie there too, and each rank updates its share: nobody has to
send a new parameter anywhere, and the optimizer's work and state are divided by the number of ranks. Whoever writes to a
parameter or to state between two steps would then do it once per rank: this is looked for before each update, and refused.

Exact for optimizers that work element by element, and in shards for LARS and LAMB: their pieces end where tensors do, and the
squared norms of the parts are summed over the ranks. Others are refused with the reason.

Source: Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054 (stage 1: the optimizer's state is divided).
"""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import CollectiveError, ConfigError
from hvd_trainer.optim import param_holders, step_errors
from hvd_trainer.optim.change_guard import ChangeGuard, stretch_of
from hvd_trainer.optim.flat_buffers import open_flats
from hvd_trainer.optim.flat_refusal import refusal_while_running
from hvd_trainer.optim.flat_state import FlatState
from hvd_trainer.optim.kernels import make_step
from hvd_trainer.optim.pieces import LAYERWISE, adapts_of, cut_by_length, cut_by_tensor
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.shared_sums import SharedSums

OWN_KEYS = ("params", "adapts")  # of a param group: lists that go with the pieces


class FlatUpdate:
    """Updates flat pieces; made when all ranks hold the same parameters and state. A collective.

    Args:
        optimizer: the user's; nobody else steps it while this is in use.
        reducer: its gradients; where they go through `SharedSums`, parameters and state are shared, too.
        comm: the ranks.
        name: of the collectives.

    Attributes:
        problem: why it could not be made, "" where it could; the same on all ranks.
        shared: whether each rank updates its share of what all see.
        is_layerwise: whether the optimizer needs norms of whole tensors.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, reducer: Reducer, comm: Communicator, name: str) -> None:
        self._optimizer, self._reducer = optimizer, reducer
        self._way = reducer.way
        self._is_given_back = False
        self._hook: Any = None
        self._guard: Optional[ChangeGuard] = None
        self._pointers: list[int] = []
        self.shared = isinstance(self._way, SharedSums)
        self.is_layerwise = type(optimizer) in LAYERWISE
        wanted = [(bucket.numel, bucket.dtype) for bucket in reducer.buckets]
        self.flats, self.problem = open_flats(wanted, comm, f"{name}.parameters", shared=self.shared)
        if self.problem:
            return
        self._views = reducer.places.views_of(self.flats)
        if comm.local_rank == 0 or not self.shared:
            for view, param in zip(self._views, reducer.params):
                view.copy_(param.detach())
        self._wait_for_all()
        for view, param in zip(self._views, reducer.params):
            param.data = view
        param_holders.hold(reducer.params, self)
        self._pointers = [view.data_ptr() for view in self._views]
        # What this rank updates: pieces of the flat parameters, with the means of their gradients.
        self._ranges = [self._cut(number) for number in range(len(self.flats))]
        self._pieces: list[list[torch.nn.Parameter]] = []
        for flat, means, ranges in zip(self.flats, self._way.results, self._ranges):
            pieces = [torch.nn.Parameter(flat[begin:end]) for begin, end in ranges]
            for piece, (begin, end) in zip(pieces, ranges):
                piece.grad = means[begin:end]
            self._pieces.append(pieces)
        self._all_pieces = [piece for pieces in self._pieces for piece in pieces]
        self._inner: Optional[torch.optim.Optimizer] = None
        self._pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._state = FlatState(optimizer, reducer, comm, name, self._pieces, self._ranges, self.shared)
        self._guard = ChangeGuard(self._stretches()) if self.shared else None
        self._hook = optimizer.register_state_dict_post_hook(_with_counters_of_their_own)
        try:
            self.problem = self.take_state()
        except CollectiveError:
            self.give_back()
            raise
        self._wait_for_all()
        if self.shared:
            # After the job each rank may do with the model what it likes: nobody else must see it.
            ended = weakref.WeakMethod(self.give_back)
            comm.on_close.append(lambda: (ended() or _nothing)())

    def step(self, factor: float = 1.0, max_value: Optional[float] = None) -> None:
        """Update this rank's pieces by the means, times `factor`, clamped; returns when all ranks that share them have.

        Raises:
            ConfigError: there is no room for the state that the first step has made; on all ranks that share it.
        """
        if self._way.moved:
            self._follow()
        for piece in self._all_pieces if factor != 1.0 else ():
            piece.grad.mul_(factor)  # means are no part of a graph
        for piece in self._all_pieces if max_value is not None else ():
            piece.grad.clamp_(-max_value, max_value)
        for theirs, ours in self._pairs:
            for key in theirs:
                if key not in OWN_KEYS:
                    ours[key] = theirs[key]
        self._look_at_momentum()
        self._call()
        if not self._state.is_placed:
            problem = self._state.place(self._inner)
            if problem:
                raise ConfigError(
                    f"the state of {type(self._optimizer).__name__} for {sum(flat.numel() for flat in self.flats):,} parameters: {problem}",
                    "room for it, which all ranks of the node share",
                    'more memory, an optimizer with less state, or DistributedOptimizer(..., update_by="tensors"), where each rank holds all',
                )
            self._make_call()
        if self._state.guard is not None:
            self._state.guard.take()
        if self._guard is not None:
            self._guard.take()
        self._wait_for_all()
        self._optimizer._opt_called = True  # schedulers look at it

    def changes(self) -> float:
        """What somebody else has written to since the last step, as `Numbers.changed` says it; this rank's view."""
        found = 0.0
        if self._guard is not None and self._guard.differ():
            found = step_errors.PARAMS_WRITTEN
        if self._state.guard is not None and self._state.was_written():
            found += step_errors.STATE_WRITTEN
        return found

    def check_writes(self) -> None:
        """See `FlatState.check_writes`, where a rank has written to the state."""
        self._state.check_writes()

    def forget_guard(self) -> None:
        """The parameters are about to be written by all ranks alike (a checkpoint is loaded)."""
        if self._guard is not None:
            self._guard.forget()

    def is_stale(self) -> str:
        """Why the update must not go on in flat buffers, "" where it may; this rank's view."""
        if [param.data_ptr() for param in self._reducer.params] != self._pointers:
            return "the memory of a parameter was replaced"
        return refusal_while_running(self._optimizer)

    def is_outdated(self) -> bool:
        """Whether the optimizer's state or groups were replaced, or momentum switched on: `take_state` must follow on all ranks."""
        for (theirs, _), was_on in zip(self._pairs, self._momentum):
            if not was_on and theirs.get("momentum"):
                return True
        return self._state.was_replaced()

    def give_back(self) -> None:
        """Parameters and state become this rank's own again; a second call does nothing. Not a collective."""
        if self._is_given_back:
            return
        self._is_given_back = True
        if self._hook is not None:
            self._hook.remove()
        with torch.no_grad():
            for param, pointer in zip(self._reducer.params, self._pointers):
                if param.data_ptr() == pointer:
                    param.data = param.detach().clone(memory_format=torch.preserve_format)
                param_holders.let_go(param, self)
                state = self._optimizer.state.get(param, {})
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        state[key] = value.clone(memory_format=torch.preserve_format)
        self.forget_guard()

    def _look_at_momentum(self) -> None:
        """Where it is switched on, the next step makes state that has no place yet."""
        before, self._momentum = self._momentum, [bool(ours.get("momentum")) for _, ours in self._pairs]
        # With shares all ranks have come through `take_state` by then.
        if self._state.is_placed and any(now and not was for now, was in zip(self._momentum, before)):
            self._state.is_placed = False
            self._make_call()

    def _follow(self) -> None:
        """Take the means where they lie now."""
        for number in self._way.moved:
            means = self._way.results[number]
            for piece, (begin, end) in zip(self._pieces[number], self._ranges[number]):
                piece.grad = means[begin:end]
        self._way.moved.clear()
        self._make_call()

    def _make_call(self) -> None:
        """The step over the pieces, their gradients and their state as these are now; of a rank without a share, nothing."""
        self._call = make_step(self._inner) if self._inner is not None else _nothing

    def _cut(self, number: int) -> list[tuple[int, int]]:
        """Where the pieces of a bucket that this rank updates begin and end."""
        first, last = self._way.my_slice(number)
        if self.is_layerwise:
            return cut_by_tensor(self._reducer.buckets[number], first, last)
        chunks = self._way.my_chunks(number)
        return cut_by_length(first, last, chunks[0].numel()) if chunks else []

    def _sum_squares(self, squares: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self._way.over_shares(squares.tolist(), "the norms"), dtype=squares.dtype)

    # -- the optimizer of the slices, and its state -----------------------------------------------------------------

    def _wait_for_all(self) -> None:
        if self.shared:
            self._way.updated()

    def _stretches(self) -> list[tuple[memoryview, int]]:
        """This rank's part of each parameter."""
        found = []
        for number, bucket in enumerate(self._reducer.buckets):
            first, last = self._way.my_slice(number)
            for slot in bucket.slots:
                begin, end = max(first, slot.offset), min(last, slot.offset + slot.numel)
                if begin < end:
                    found.append(stretch_of(self.flats[number], begin, end))
        return found

    def take_state(self) -> str:
        """Take the options and the state of the user's optimizer as they are now; why that cannot be, "" where it can. A collective.

        Raises:
            CollectiveError: the ranks' optimizers hold different state or momentum; on all ranks.
        """
        optimizer = self._optimizer
        kinds = self._state.find()
        if isinstance(kinds, str):
            return kinds
        groups = [
            {**{k: v for k, v in group.items() if k != "params"}, "params": [p for b in self._buckets_of(number) for p in self._pieces[b]]}
            for number, group in enumerate(optimizer.param_groups)
        ]
        filled = [(theirs, ours) for theirs, ours in zip(optimizer.param_groups, groups) if ours["params"]]
        required = {"lr": 0.0} if self.is_layerwise else {}  # by LARS; each group has its own
        self._inner = type(optimizer)([ours for _, ours in filled], **required) if filled else None
        self._pairs = [(theirs, ours) for (theirs, _), ours in zip(filled, self._inner.param_groups)] if filled else []
        for theirs, ours in self._pairs:
            ours.pop("initial_lr", None)
            if self.is_layerwise:
                numbers = self._buckets_of(next(n for n, group in enumerate(optimizer.param_groups) if group is theirs))
                slots = [slot for number in numbers for slot in self._reducer.buckets[number].slots]
                ours["adapts"] = adapts_of(theirs, [self._reducer.params[slot.param] for slot in slots])
        if self.is_layerwise and self.shared:
            self._inner.sum_squares = self._sum_squares
        self._momentum = [bool(ours.get("momentum")) for _, ours in self._pairs]
        problem = self._state.place(self._inner, kinds) if any(kinds) else ""
        if not problem:
            self._make_call()
        return problem

    def _buckets_of(self, group: int) -> list[int]:
        return [number for number, bucket in enumerate(self._reducer.buckets) if bucket.group == group]


def _with_counters_of_their_own(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Counters that parameters share here are copied: an optimizer that loads them would count each step several times."""
    state = {
        index: {k: v.clone() if isinstance(v, torch.Tensor) and v.dim() == 0 else v for k, v in each.items()}
        for index, each in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def _nothing() -> None:
    """The step of a rank that has no share."""
