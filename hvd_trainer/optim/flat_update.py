"""The update in flat buffers laid out like the buckets of gradients, by each rank for all of it or for its share.

Parameters and the optimizer's state lie in flat buffers; an optimizer of the user's class with the user's options steps over
a few long pieces instead of many tensors. The user's optimizer sees all of it: its parameters and its state are views of the
same memory, so that `state_dict()` is the ordinary one.

Where gradients go through memory of the node, the flat buffers lie there too, and each rank updates its share: nobody has to
send a new parameter anywhere, and the optimizer's work and state are divided by the number of ranks. Whoever writes to a
parameter between two steps would then do it once per rank: this is looked for before each update, and refused.

Exact for optimizers that work element by element, and in shards for LARS and LAMB: their pieces end where tensors do, and the
squared norms of the parts are summed over the ranks. Others are refused with the reason.

Source: Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054 (stage 1: the optimizer's state is divided).
"""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.node_memory import open_node_memory
from hvd_trainer.optim.kernels import make_step
from hvd_trainer.optim.layout import flattened_like, is_dense, view_like
from hvd_trainer.optim.pieces import ELEMENTWISE, LAYERWISE, adapts_of, cut_by_length, cut_by_tensor
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.shared_sums import SharedSums

SAME_SIZE_INT = {2: torch.int16, 4: torch.int32, 8: torch.int64}
OWN_KEYS = ("params", "adapts")  # of a param group: lists that go with the pieces
MOST_SAMPLES = 32  # parameters looked at before an update
# Who holds a parameter's memory, by the parameter's id: not an attribute of it, which torch.save and deepcopy would follow. A
# holder keeps its parameters alive, so no other object can have the id meanwhile.
_holders: weakref.WeakValueDictionary[int, FlatUpdate] = weakref.WeakValueDictionary()
STRIDE = 7_919  # a prime: the places that are looked at go through all of a parameter


def refusal(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> str:
    """Why the update cannot be made in flat buffers; "" where it can.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(4))
        >>> refusal(torch.optim.SGD([w], lr=0.1), [w]), refusal(torch.optim.LBFGS([w]), [w])
        ('', 'LBFGS is not known to work element by element')
    """
    name = type(optimizer).__name__
    if type(optimizer) not in ELEMENTWISE + LAYERWISE:
        return f"{name} is not known to work element by element"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "a step hook must see whole gradients"
    own_step = vars(optimizer).get("step")
    if own_step is not None and not hasattr(own_step, "_wrapped_by_lr_sched"):
        return f"{name}.step was replaced"
    if any(group.get("differentiable") or group.get("capturable") for group in optimizer.param_groups):
        return f"{name} with differentiable or capturable"
    if any(not (param.is_floating_point() and is_dense(param)) for param in params):
        return "a parameter is complex or has holes in memory"
    return ""


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
        self._optimizer, self._reducer, self._comm, self._name = optimizer, reducer, comm, name
        self._way = reducer.way
        self._is_given_back = False
        self._hook: Any = None
        self._samples: Optional[_Samples] = None
        self._pointers: list[int] = []
        self.shared = isinstance(self._way, SharedSums)
        self.is_layerwise = type(optimizer) in LAYERWISE
        self.flats, self.problem = self._open([(b.numel, b.dtype) for b in reducer.buckets], "parameters")
        if self.problem:
            return
        self._views = reducer.places.views_of(self.flats)
        if comm.local_rank == 0 or not self.shared:
            for view, param in zip(self._views, reducer.params):
                view.copy_(param.detach())
        self._wait_for_all()
        for view, param in zip(self._views, reducer.params):
            param.data = view
            _holders[id(param)] = self
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
        self._state_is_placed = False
        self._samples = _Samples(self._sampled()) if self.shared else None
        self._hook = optimizer.register_state_dict_post_hook(_with_counters_of_their_own)
        self.problem = self._take_state()
        self._wait_for_all()
        if self.shared:
            # After the job each rank may do with the model what it likes: nobody else must see it.
            ended = weakref.WeakMethod(self.give_back)
            comm.on_close.append(lambda: (ended() or _nothing)())

    def step(self, factor: float = 1.0, max_value: Optional[float] = None) -> None:
        """Update this rank's pieces by the means, times `factor`, clamped; returns when all ranks that share them have."""
        if self._way.moved:
            self._follow()
        with torch.no_grad():
            for piece in self._all_pieces if factor != 1.0 else ():
                piece.grad.mul_(factor)
            for piece in self._all_pieces if max_value is not None else ():
                piece.grad.clamp_(-max_value, max_value)
        for theirs, ours in self._pairs:
            for key in theirs:
                if key not in OWN_KEYS:
                    ours[key] = theirs[key]
        self._look_at_momentum()
        self._call()
        if not self._state_is_placed:
            self._place_state()
        if self._samples is not None:
            self._samples.take()
        self._wait_for_all()
        self._optimizer._opt_called = True  # schedulers look at it

    def was_changed(self) -> bool:
        """Whether somebody has written to parameters that the ranks share since the last step."""
        return self._samples is not None and self._samples.differ()

    def forget_guard(self) -> None:
        """The parameters are about to be written by all ranks alike (a checkpoint is loaded)."""
        if self._samples is not None:
            self._samples.forget()

    def is_stale(self) -> str:
        """Why the update must not go on in flat buffers, "" where it may; this rank's view."""
        if any(param.data_ptr() != pointer for param, pointer in zip(self._reducer.params, self._pointers)):
            return "the memory of a parameter was replaced"
        return refusal_while_running(self._optimizer)

    def refresh(self) -> str:
        """Where the optimizer's state or groups were replaced (load_state_dict), take the new ones. A collective then."""
        groups, state = self._optimizer.param_groups, self._optimizer.state
        same = groups is self._groups and state is self._state and len(state) == self._num_states
        return "" if same and not self._was_replaced() else self._take_state()

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
                if _holders.get(id(param)) is self:
                    del _holders[id(param)]
                state = self._optimizer.state.get(param, {})
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        state[key] = value.clone(memory_format=torch.preserve_format)
        self.forget_guard()

    def _was_replaced(self) -> bool:
        """Whether somebody has put other state in the place of some parameter's (a restart that forgets momentum)."""
        # In every step: without looking parameters up, whose hash is a call of Python's.
        for theirs, kept in zip(self._optimizer.state.values(), self._kept_states):
            if theirs is not kept:
                return True
        for theirs, key, tensor in self._placed:
            if theirs.get(key) is not tensor:
                return True
        return False

    def _look_at_momentum(self) -> None:
        """Where it is switched on, the next step makes state that has no place yet."""
        before, self._momentum = self._momentum, [bool(ours.get("momentum")) for _, ours in self._pairs]
        if self._state_is_placed and any(now and not was for now, was in zip(self._momentum, before)):
            self._state_is_placed = False
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

    def _sampled(self) -> list[tuple[memoryview, int]]:
        """This rank's part of each parameter: where it begins, and how long it is."""
        found = []
        for number, bucket in enumerate(self._reducer.buckets):
            first, last = self._way.my_slice(number)
            cells = memoryview(self.flats[number].view(SAME_SIZE_INT[self.flats[number].element_size()]).numpy())
            for slot in bucket.slots:
                begin, end = max(first, slot.offset), min(last, slot.offset + slot.numel)
                if begin < end:
                    found.append((cells[begin:end], end - begin))
        return found

    def _take_state(self) -> str:
        """A new optimizer over the slices, with the options and, from its tensors, the state of the user's."""
        optimizer = self._optimizer
        self._groups, self._state, self._num_states = optimizer.param_groups, optimizer.state, len(optimizer.state)
        kinds = self._kinds_of_state()
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
        self._state_is_placed = False
        self._momentum = [bool(ours.get("momentum")) for _, ours in self._pairs]
        self._kept_states: list[dict[str, Any]] = []
        self._placed: list[tuple[dict[str, Any], str, Any]] = []
        if any(kinds):
            return self._place_state(kinds)
        self._make_call()
        return ""

    def _buckets_of(self, group: int) -> list[int]:
        return [number for number, bucket in enumerate(self._reducer.buckets) if bucket.group == group]

    def _kinds_of_state(self) -> Any:
        """For each bucket, the dtype of each tensor in its parameters' state and whether it is one number; or a problem."""
        found: list[dict[str, tuple[torch.dtype, bool]]] = []
        for bucket in self._reducer.buckets:
            kinds: list[dict[str, tuple[torch.dtype, bool]]] = []
            for slot in bucket.slots:
                param = self._reducer.params[slot.param]
                state = self._optimizer.state.get(param, {})
                tensors = {key: value for key, value in state.items() if value is not None}
                if any(not isinstance(v, torch.Tensor) or v.shape not in (param.shape, ()) for v in tensors.values()):
                    return "the optimizer's state has another shape than its parameter"
                kinds.append({key: (v.dtype, v.shape != param.shape) for key, v in tensors.items()})
            numbers = [
                {key: self._optimizer.state[self._reducer.params[s.param]][key].item() for key, (_, one) in kinds[0].items() if one}
                for s in bucket.slots
                if kinds[0] and self._optimizer.state.get(self._reducer.params[s.param])
            ]
            if any(k != kinds[0] for k in kinds) or any(n != numbers[0] for n in numbers):
                return "parameters have made different numbers of steps"
            found.append(kinds[0])
        return found

    def _place_state(self, kinds: Optional[list[dict[str, tuple[torch.dtype, bool]]]] = None) -> str:
        """Move the state of the pieces to flat buffers, and show it to the user's optimizer as its own.

        Args:
            kinds: of the user's optimizer, whose state is taken; without it, what the first step has made is.
        """
        from_user = kinds is not None
        if kinds is None:
            kinds = [self._made(pieces) for pieces in self._pieces]
            if self.shared:  # the first rank has a share of every bucket
                kinds = self._comm.gather_objects(kinds, f"{self._name}.kinds")[0]
        wanted = [
            (1 if one else bucket.numel, dtype) for bucket, each in zip(self._reducer.buckets, kinds) for dtype, one in each.values()
        ]
        tensors, problem = self._open(wanted, "state")
        if problem:
            return problem
        remaining = iter(tensors)
        for number, each in enumerate(kinds):
            if each:
                self._place(number, each, {key: next(remaining) for key in each}, from_user)
        self._state_is_placed = True
        self._num_states = len(self._optimizer.state)
        self._kept_states = list(self._optimizer.state.values())
        self._placed = [(theirs, key, value) for theirs in self._kept_states for key, value in theirs.items()]
        self._make_call()
        return ""

    def _made(self, pieces: list[torch.nn.Parameter]) -> dict[str, tuple[torch.dtype, bool]]:
        state = self._inner.state.get(pieces[0], {}) if pieces and self._inner is not None else {}
        return {k: (v.dtype, v.shape != pieces[0].shape) for k, v in state.items() if isinstance(v, torch.Tensor)}

    def _place(self, number: int, kinds: dict[str, tuple[torch.dtype, bool]], whole: dict[str, torch.Tensor], from_user: bool) -> None:
        """Put one bucket's state into `whole`, this rank's share of it; pieces and the user's parameters get views."""
        params = self._reducer.params
        bucket, (first, last) = self._reducer.buckets[number], self._way.my_slice(number)
        user = [self._optimizer.state[params[slot.param]] for slot in bucket.slots]
        for key, (_, one) in kinds.items():
            flat = whole[key]
            if one:
                counts = self._comm.local_rank == 0 or not self.shared
                if counts:
                    source = user[0][key] if from_user else self._inner.state[self._pieces[number][0]][key]
                    flat.copy_(source.reshape(1))
                value = user[0][key].item() if from_user else None
                for place, piece in enumerate(self._pieces[number]):
                    state = self._inner.state[piece]
                    # One rank counts for all to see; every further piece has a counter of its own.
                    if place == 0 and counts:
                        state[key] = flat.view(())
                    elif from_user:
                        state[key] = torch.full((), value, dtype=flat.dtype)
                for state in user:
                    state[key] = flat.view(())
                continue
            views = [view_like(flat, slot.offset, slot.numel, params[slot.param]) for slot in bucket.slots]
            parts = [flat[begin:end] for begin, end in self._ranges[number]]
            if from_user:
                whole_before = torch.cat([flattened_like(state[key], params[slot.param]) for state, slot in zip(user, bucket.slots)])
                flat[first:last].copy_(whole_before[first:last])
            for piece, part in zip(self._pieces[number], parts):
                if not from_user:
                    part.copy_(self._inner.state[piece][key])
                self._inner.state[piece][key] = part
            for state, view in zip(user, views):
                state[key] = view

    def _open(self, wanted: list[tuple[int, torch.dtype]], what: str) -> tuple[list[torch.Tensor], str]:
        if not self.shared:
            return [torch.zeros(numel, dtype=dtype) for numel, dtype in wanted], ""
        sizes = [numel * dtype.itemsize for numel, dtype in wanted]
        memory, problem = open_node_memory(self._comm, sizes, 0, self._comm.unique_name(f"{self._name}.{what}"))
        if memory is None:
            return [], problem
        return [memory.tensor(numel, dtype) for numel, dtype in wanted], ""


class _Samples:
    """Looks whether memory was changed: at one element of each stretch, another one each time.

    A change that goes on from step to step is found in one of the next, at no cost that grows with the model; bits are
    compared, so that NaN equals itself.

    Args:
        stretches: memory as integers, and its length.
    """

    def __init__(self, stretches: list[tuple[memoryview, int]]) -> None:
        self._stretches, self._count = stretches, 0
        self._taken: Optional[tuple[list[tuple[memoryview, int]], list[int]]] = None

    def take(self) -> None:
        """Remember some elements."""
        self._count += 1
        start = self._count * MOST_SAMPLES
        some, number = self._stretches, len(self._stretches)
        if number > MOST_SAMPLES:
            some = [some[(start + k) % number] for k in range(MOST_SAMPLES)]
        places = [(cells, self._count * STRIDE % length) for cells, length in some]
        self._taken = (places, [cells[at] for cells, at in places])

    def differ(self) -> bool:
        """Whether one of them has changed."""
        return self._taken is not None and [cells[at] for cells, at in self._taken[0]] != self._taken[1]

    def forget(self) -> None:
        """Until the next `take` nothing differs."""
        self._taken = None


def _with_counters_of_their_own(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Counters that parameters share here are copied: an optimizer that loads them would count each step several times."""
    state = {
        index: {k: v.clone() if isinstance(v, torch.Tensor) and v.dim() == 0 else v for k, v in each.items()}
        for index, each in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def _nothing() -> None:
    """The step of a rank that has no share."""


def refusal_while_running(optimizer: torch.optim.Optimizer) -> str:
    """What of `refusal` can change from step to step."""
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "a step hook must see whole gradients"
    own_step = vars(optimizer).get("step")
    if own_step is not None and not hasattr(own_step, "_wrapped_by_lr_sched"):
        return f"{type(optimizer).__name__}.step was replaced"
    return ""


def take_over(param: torch.nn.Parameter) -> None:
    """Where another optimizer holds this parameter's memory, it gives all of its own back first."""
    other = _holders.get(id(param))
    if other is not None:
        other.give_back()


def unshare(params: list[torch.nn.Parameter]) -> None:
    """Each rank is about to write to these: where another optimizer holds one in memory that ranks share, it gives that back first."""
    for param in params if _holders else ():
        other = _holders.get(id(param))
        if other is not None and other.shared:
            other.give_back()
