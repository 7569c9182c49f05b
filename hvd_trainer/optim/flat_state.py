"""The optimizer's state in flat buffers laid out like the buckets, and shown to the user's optimizer as its own.

Each rank holds the state of the pieces that it updates; where the buffers lie in memory of the node, all ranks see all of it.
Somebody may replace the state (`load_state_dict`, a restart that forgets momentum), also on one rank alone: it is noticed by
each rank, but taken up by all together, which compare what they find.
"""

from __future__ import annotations

from typing import Any, NoReturn, Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import CollectiveError
from hvd_trainer.optim import step_errors
from hvd_trainer.optim.change_guard import VersionGuard
from hvd_trainer.optim.flat_buffers import open_flats
from hvd_trainer.optim.layout import flattened_like, view_like
from hvd_trainer.optim.reducer import Reducer

# Of one tensor of the state: its dtype and, where it is one number (of steps, as a rule), that number.
Kind = tuple[torch.dtype, Optional[float]]
Kinds = dict[str, Kind]


class FlatState:
    """The state of the parameters in a reducer's buckets.

    Args:
        optimizer: the user's.
        reducer: has the buckets.
        comm: the ranks.
        name: of the collectives.
        pieces: of each bucket, what this rank updates.
        ranges: where each of them begins and ends in the bucket.
        shared: whether all ranks of the node see the buffers.

    Attributes:
        is_placed: False where the next step makes state that has no place yet.
        guard: notices who else changes state in place that is not this rank's, or not one parameter's, alone; None where all is.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        reducer: Reducer,
        comm: Communicator,
        name: str,
        pieces: list[list[torch.nn.Parameter]],
        ranges: list[list[tuple[int, int]]],
        shared: bool,
    ) -> None:
        self._optimizer, self._reducer, self._comm, self._name = optimizer, reducer, comm, name
        self._pieces, self._ranges, self._shared = pieces, ranges, shared
        self.is_placed = False
        self._watched: list[tuple[str, torch.Tensor]] = []  # by the guard: the key, and this rank's part of its buffer
        self.guard: Optional[VersionGuard] = None

    def find(self) -> Union[list[Kinds], str]:
        """What the user's optimizer holds now, for each bucket; or why that has no place in flat buffers. A collective.

        Raises:
            CollectiveError: the ranks' optimizers hold different state, or momentum by which some make more; on all ranks.
        """
        optimizer = self._optimizer
        found = self._kinds()
        momentum = [float(group.get("momentum") or 0.0) for group in optimizer.param_groups]
        everyone = self._comm.gather_objects((found, momentum), f"{self._name}.state_kinds")
        other = next((rank for rank, theirs in enumerate(everyone) if theirs != everyone[0]), None)
        if other is not None:  # nothing was taken up yet: the next look finds the same again
            self._raise_unlike(everyone[0], everyone[other], other)
        self._groups, self._state, self._num_states = optimizer.param_groups, optimizer.state, len(optimizer.state)
        self._kept: list[dict[str, Any]] = []
        self._placed: list[tuple[dict[str, Any], str, Any]] = []
        self.guard = None
        self.is_placed = False
        return found

    def was_replaced(self) -> bool:
        """Whether somebody has put other state or groups in the place of those that were found; this rank's view."""
        optimizer = self._optimizer
        state = optimizer.state
        if optimizer.param_groups is not self._groups or state is not self._state or len(state) != self._num_states:
            return True
        # In every step: without looking parameters up, whose hash is a call of Python's.
        for theirs, kept in zip(state.values(), self._kept):
            if theirs is not kept:
                return True
        for theirs, key, tensor in self._placed:
            if theirs.get(key) is not tensor:
                return True
        return False

    def was_written(self) -> bool:
        """Whether the guard has noticed a change that counts; this rank's view."""
        return bool(self._written())

    def check_writes(self) -> None:
        """Where some rank `was_written`: changes were made on top of each other, which means something only for zeros. A collective.

        Raises:
            LossError: not all of what was changed is zero now; on all ranks.
        """
        not_zero = [number for number, (_, part) in enumerate(self._watched) if part.count_nonzero()]
        everyone = self._comm.gather_objects((self._written(), not_zero), f"{self._name}.written")
        left = {number for _, theirs in everyone for number in theirs}
        spoilt = sorted({number for written, _ in everyone for number in written if number in left})
        if spoilt:
            keys = dict.fromkeys(self._watched[number][0] for number in spoilt)
            ranks = [rank for rank, (written, _) in enumerate(everyone) if not left.isdisjoint(written)]
            step_errors.raise_written_state(list(keys), ranks, self._comm, self._shared)

    def place(self, inner: Optional[torch.optim.Optimizer], kinds: Optional[list[Kinds]] = None) -> str:
        """Move the state of the pieces to flat buffers; returns the problem where there is no room. A collective.

        Args:
            inner: the optimizer of the pieces; None on a rank without any.
            kinds: of the user's optimizer, whose state is taken; without it, what the first step has made is.
        """
        from_user = kinds is not None
        if kinds is None:
            kinds = [_made(inner, pieces) for pieces in self._pieces]
            if self._shared:  # the first rank has a share of every bucket
                kinds = self._comm.gather_objects(kinds, f"{self._name}.kinds")[0]
        wanted = [
            (bucket.numel if one is None else 1, dtype) for bucket, each in zip(self._reducer.buckets, kinds) for dtype, one in each.values()
        ]
        flats, problem = open_flats(wanted, self._comm, f"{self._name}.state", shared=self._shared)
        if problem:
            return problem
        remaining = iter(flats)
        self._watched = []
        for number, each in enumerate(kinds):
            first, last = self._reducer.way.my_slice(number)
            for key, (_, one) in each.items():
                flat = next(remaining)
                if one is None:
                    self._place_tensors(inner, number, key, flat, from_user)
                else:
                    self._place_number(inner, number, key, flat, one if from_user else None)
                if self._shared or one is not None:
                    self._watched.append((key, flat[first:last] if one is None else flat))
        self.is_placed = not from_user or all(kinds)  # what begins to train now makes its state in the next step
        self._num_states = len(self._optimizer.state)
        self._kept = list(self._optimizer.state.values())
        self._placed = [(theirs, key, value) for theirs in self._kept for key, value in theirs.items()]
        self.guard = VersionGuard([part for _, part in self._watched]) if self._watched else None
        return ""

    # -- inside -----------------------------------------------------------------------------------------------------

    def _kinds(self) -> Union[list[Kinds], str]:
        found = []
        for bucket in self._reducer.buckets:
            kinds: list[Kinds] = []
            for slot in bucket.slots:
                param = self._reducer.params[slot.param]
                state = self._optimizer.state.get(param, {})
                tensors = {key: value for key, value in state.items() if value is not None}
                if any(not isinstance(v, torch.Tensor) or v.shape not in (param.shape, ()) for v in tensors.values()):
                    return "the optimizer's state has another shape than its parameter"
                kinds.append({key: _kind(value, param) for key, value in tensors.items()})
            if any(each != kinds[0] for each in kinds):
                return "parameters have made different numbers of steps"
            found.append(kinds[0])
        return found

    def _raise_unlike(self, first: tuple[Any, list[float]], theirs: tuple[Any, list[float]], rank: int) -> NoReturn:
        if first[0] != theirs[0]:
            raise CollectiveError(
                f"at {self._comm.where} the optimizer's state differs: {_in_words(first[0])} on rank 0, {_in_words(theirs[0])} on rank {rank}",
                "the same state on all ranks",
                "replace it, or call opt.load_state_dict, on every rank",
            )
        group = next(number for number, (a, b) in enumerate(zip(first[1], theirs[1])) if a != b)
        raise CollectiveError(
            f"at {self._comm.where} the optimizer's param_groups[{group}][\"momentum\"] differs: {first[1][group]:g} on rank 0, "
            f"{theirs[1][group]:g} on rank {rank}",
            "the same momentum on all ranks",
            "set it on every rank, before the same step",
        )

    def _written(self) -> list[int]:
        """Of what is watched, what was changed in place and is still the user's state: not replaced since."""
        if self.guard is None or not self.guard.differ():
            return []
        used = {
            value.untyped_storage().data_ptr()
            for state in self._optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        }
        return [number for number in self.guard.changed() if self._watched[number][1].untyped_storage().data_ptr() in used]

    def _users(self, number: int) -> list[dict[str, Any]]:
        return [self._optimizer.state[self._reducer.params[slot.param]] for slot in self._reducer.buckets[number].slots]

    def _place_number(
        self, inner: Optional[torch.optim.Optimizer], number: int, key: str, flat: torch.Tensor, value: Optional[float]
    ) -> None:
        """One number of a bucket goes into `flat`: the user's, or the pieces' own. One rank counts for all to see."""
        counts = self._comm.local_rank == 0 or not self._shared
        if counts:
            flat.fill_(inner.state[self._pieces[number][0]][key] if value is None else value)
        for at, piece in enumerate(self._pieces[number]):
            if at == 0 and counts:
                inner.state[piece][key] = flat.view(())
            elif value is not None:  # every further piece has a counter of its own
                inner.state[piece][key] = torch.full((), value, dtype=flat.dtype)
        for state in self._users(number):
            state[key] = flat.view(())

    def _place_tensors(self, inner: Optional[torch.optim.Optimizer], number: int, key: str, flat: torch.Tensor, from_user: bool) -> None:
        """This rank's share of the state of a bucket goes into `flat`; pieces and the user's parameters get views."""
        params, slots = self._reducer.params, self._reducer.buckets[number].slots
        first, last = self._reducer.way.my_slice(number)
        users = self._users(number)
        if from_user:
            whole = torch.cat([flattened_like(state[key], params[slot.param]) for state, slot in zip(users, slots)])
            flat[first:last].copy_(whole[first:last])
        for piece, (begin, end) in zip(self._pieces[number], self._ranges[number]):
            part = flat[begin:end]
            if not from_user:
                part.copy_(inner.state[piece][key])
            inner.state[piece][key] = part
        for state, slot in zip(users, slots):
            state[key] = view_like(flat, slot.offset, slot.numel, params[slot.param])


def _kind(value: torch.Tensor, param: torch.Tensor) -> Kind:
    return value.dtype, None if value.shape == param.shape else value.item()


def _made(inner: Optional[torch.optim.Optimizer], pieces: list[torch.nn.Parameter]) -> Kinds:
    """What the optimizer of the pieces holds for a bucket."""
    state = inner.state.get(pieces[0], {}) if pieces and inner is not None else {}
    return {key: _kind(value, pieces[0]) for key, value in state.items() if isinstance(value, torch.Tensor)}


def _in_words(found: Union[list[Kinds], str]) -> str:
    if isinstance(found, str):
        return found
    each = {key if value is None else f"{key}={value:g}" for kinds in found for key, (_, value) in kinds.items()}
    return ", ".join(sorted(each)) or "none"
