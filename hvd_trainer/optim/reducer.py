"""Gradients as views in flat buckets, averaged over the ranks, each bucket sent as soon as backward has finished it.

Rules that keep ranks from waiting for each other for ever:
- buckets are sent strictly in index order, whatever order backward finishes them in on a rank;
- only an armed backward (the last one of a step) sends; `flush` sends what is left, also on a rank without data;
- a few numbers travel behind the buckets; only where a parameter has no gradient on some rank, flags for each follow.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import CollectiveError, LossError
from hvd_trainer.optim.buckets import Bucket, ParamSpec, plan_buckets
from hvd_trainer.optim.shared_sums import SharedSums
from hvd_trainer.optim.small_sums import SmallSums
from hvd_trainer.optim.ways import Messages, Numbers, Sums

Way = Union[Messages, SharedSums, SmallSums]


class Reducer:
    """Averages the gradients of a fixed list of parameters over all ranks.

    Args:
        named_params: (name, parameter) pairs, all with requires_grad, the same on all ranks.
        comm: the ranks.
        bucket_bytes: see `plan_buckets`.
        name: prefix of the collectives' names, unique in the job.
        groups: the number of each parameter's group; a bucket holds one group.
        open_way: makes what carries the buckets; messages where it is not given.

    Raises:
        CollectiveError: the ranks' parameters differ in number, name, shape or dtype; raised on all ranks.
    """

    def __init__(
        self,
        named_params: list[tuple[str, torch.nn.Parameter]],
        comm: Communicator,
        bucket_bytes: int,
        name: str,
        groups: Optional[list[int]] = None,
        open_way: Callable[[list[Bucket], Communicator, str], Way] = Messages,
    ) -> None:
        self.params = [param for _, param in named_params]
        self._comm, self._name = comm, name
        groups = groups or [0] * len(named_params)
        self.specs = [
            ParamSpec(n, tuple(p.shape), p.dtype, p.device, g, () if p.is_contiguous() else p.stride())
            for (n, p), g in zip(named_params, groups)
        ]
        check_same_params(self.specs, comm, name)
        self.names = [spec.name for spec in self.specs]
        self.buckets = plan_buckets(self.specs, bucket_bytes)
        self.way = open_way(self.buckets, comm, name)
        self._bucket_of = [0] * len(self.specs)
        for number, bucket in enumerate(self.buckets):
            for slot in bucket.slots:
                self._bucket_of[slot.param] = number
        self._sets = [(flats, self.views_of(flats)) for flats in self.way.flat_sets]
        self._shown = self._sets[0][1] if self.way.results is self.way.flat_sets[0] else self.views_of(self.way.results)
        self._delivered = self._shown
        self._all_members = [
            [[(self.params[s.param], views[s.param]) for s in bucket.slots] for bucket in self.buckets] for _, views in self._sets
        ]
        self._turn = -1
        self._next_set()
        self.foreign = False  # a backward that is not ours left gradients since the last `flush`, `discard` or `expect`
        self._ours = self._armed = self._was_armed = False
        self._seen = bytearray(len(self.specs))  # by our backward, so far
        self._sizes = [len(bucket.slots) for bucket in self.buckets]
        self._missing = list(self._sizes)
        self._num_sent = 0
        self._used_anywhere: Optional[list[bool]] = None  # None: all, as ever
        self._of_another: set[int] = set()
        self._lonely = _references_of_a_lonely_one()
        self._rows: dict[int, torch.Tensor] = {}  # of sparse gradients: which rows this step's have
        self._handles = [
            param.register_post_accumulate_grad_hook(partial(self._on_grad, index))
            for index, param in enumerate(self.params)
        ]

    def _next_set(self) -> None:
        """The buffers for the next step's gradients: others may still read the last step's."""
        self._turn = (self._turn + 1) % len(self._sets)
        self.flats, self._views = self._sets[self._turn]
        self._members = self._all_members[self._turn]
        self.note_versions()

    def views_of(self, flats: list[torch.Tensor]) -> list[torch.Tensor]:
        """Each parameter's place in buffers that are laid out like the buckets, in its shape and, if dense, its strides."""
        views = [torch.empty(0)] * len(self.specs)
        for number, bucket in enumerate(self.buckets):
            for slot in bucket.slots:
                views[slot.param] = _view(flats[number], slot.offset, slot.numel, self.params[slot.param])
        return views

    def begin(self, armed: bool, weight: float = 0.0, nominal: float = 1.0) -> None:
        """A backward of ours starts, until `end`.

        Args:
            armed: a bucket is sent as soon as this backward has finished it: the last backward of the step.
            weight: of this rank in the whole step, where it is armed.
            nominal: what losses were divided by.
        """
        self._seen = bytearray(len(self.params))
        self._missing = list(self._sizes)
        self._ours, self._armed = True, armed
        if armed:
            self.arm(weight, nominal)

    def arm(self, weight: float, nominal: float) -> None:
        """This step's gradients are all there or about to come; see `begin`."""
        self._was_armed = True
        if not self._num_sent:
            self.way.announce(weight, 0.0, nominal)

    def end(self) -> None:
        """Backward is over: later gradients (of somebody else's loss) send nothing."""
        self._ours = self._armed = False

    def flush(self, numbers: Numbers, weight: float = 0.0, plain: float = 0.0, nominal: float = 1.0) -> Sums:
        """Send what was not sent, wait for all; the means over ranks are then ready to be shown.

        Args:
            numbers: this rank's; whether it is irregular is found here.
            weight, plain, nominal: see `ways.Sums`; used where no bucket was sent yet.

        Raises:
            LossError: gradients were changed between backward and here, where they are not averaged yet.
        """
        self._check_untouched()
        used: list[bool] = []
        if self._num_sent < len(self.buckets):
            # A bucket that is under way was complete when it was sent: it must not be touched any more.
            used = [self._is_sent(index) or self._adopt(index) for index in range(len(self.params))]
            if not self._num_sent:
                self.way.announce(weight, plain, nominal)
            while self._num_sent < len(self.buckets):
                self._send_next()
        is_irregular = bool(self._rows) or not all(used)
        sums = self.way.finish(replace(numbers, irregular=1.0) if is_irregular else numbers)
        self._num_sent, self.foreign, self._was_armed = 0, False, False
        self._used_anywhere = None
        if sums.irregular:
            self._find_used(used or [True] * len(self.params))
        self._next_set()
        return sums

    @property
    def all_used(self) -> bool:
        """Whether every parameter had a gradient on some rank in the last flush, and none a sparse one."""
        return self._used_anywhere is None or (all(self._used_anywhere) and not self._rows)

    def deliver(self) -> None:
        """Every used parameter's `grad` is now its view of the mean, this rank's own to change; `grad = None` of others."""
        if self.way.results_are_own:
            self.show()
            return
        for flat, result in zip(self.flats, self.way.results):
            flat.copy_(result)
        self._delivered = self._views
        self._set_grads(self._views)
        self.note_versions()

    def show(self) -> None:
        """As `deliver`, without a copy: views of what all ranks of the node may share, to be read only."""
        self._delivered = self._shown
        self._set_grads(self._shown)

    def are_delivered(self) -> bool:
        """Whether the gradients still are the very views that were delivered."""
        return all(param.grad is view for param, view in zip(self.params, self._delivered))

    def _set_grads(self, views: list[torch.Tensor]) -> None:
        if self._used_anywhere is None:
            for param, view in zip(self.params, views):
                param.grad = view
        else:
            for param, view, is_used in zip(self.params, views, self._used_anywhere):
                param.grad = view if is_used else None

    def _find_used(self, used: list[bool]) -> None:
        sparse = [float(index in self._rows) for index in range(len(self.params))]
        flags = self.way.exchange([float(flag) for flag in used] + sparse, "used")
        num_used, num_sparse = flags[: len(used)], flags[len(used) :]
        self._used_anywhere = [count > 0 for count in num_used]
        self._find_rows([i for i, (n, k) in enumerate(zip(num_used, num_sparse)) if k and n == k])

    def make_sparse(self) -> None:
        """Where every gradient of a parameter was sparse, give the optimizer a sparse one again: the rows of all ranks.

        Optimizers that take sparse gradients treat rows that are not there differently (SparseAdam leaves their moments).
        """
        for index, rows in self._rows.items():
            view = self._delivered[index]
            # Rows of a mask are sorted, unique and inside the tensor.
            self.params[index].grad = torch.sparse_coo_tensor(
                rows[None], view[rows], view.shape, is_coalesced=True, check_invariants=False
            )
        self._rows = {}

    def _find_rows(self, indices: list[int]) -> None:
        """The union over ranks of the rows in sparse gradients; all ranks pass the same parameters."""
        pending = []
        for index in indices:
            mask = torch.zeros(len(self._views[index]), dtype=torch.int32, device=self._comm.device)
            if index in self._rows:
                mask[self._rows[index]] = 1
            pending.append(self._comm.allreduce_(mask, f"{self._name}.rows{index}", "max"))
        self._rows = {index: each.wait().nonzero()[:, 0] for index, each in zip(indices, pending)}

    def begin_window(self) -> bool:
        """A step begins: False where gradients that are not zero are left over from before."""
        if self.holds_gradients():
            return False
        self.foreign = False
        if not self.way.results_are_own:
            # Zeros that all ranks share, after model.zero_grad(set_to_none=False): autograd would add into them.
            for param, shown in zip(self.params, self._shown):
                if param.grad is shown:
                    param.grad = None
        return True

    def zero_grad(self) -> None:
        """Zeros of this rank's own in every gradient that is there."""
        for param, view in zip(self.params, self._views):
            if param.grad is not None:
                param.grad = view.zero_()
        self.note_versions()

    def holds_gradients(self) -> bool:
        """Whether any parameter holds a gradient that is not zero."""
        grads = [param.grad for param in self.params if param.grad is not None]
        return any(grad.is_sparse or bool(grad.count_nonzero()) for grad in grads)

    def holds_anything(self) -> bool:
        """Whether a gradient is there, or a bucket under way."""
        return bool(self._num_sent) or any(param.grad is not None for param in self.params)

    def holds_gradients_of_another(self) -> bool:
        """Whether a gradient that is there now came from the backward of another optimizer's loss."""
        return any(self.params[index].grad is not None for index in self._of_another)

    def detach(self) -> None:
        """Take the hooks off; gradients stay where they are."""
        for handle in self._handles:
            handle.remove()

    def discard(self) -> None:
        """Wait for what is under way and forget it (the caller throws this step's gradients away)."""
        # Others may have sent more or fewer in the same backward, and throw it away, too.
        while self._was_armed and self._num_sent < len(self.buckets):
            self._send_next()
        self.way.discard()
        self._num_sent, self.foreign, self._rows, self._was_armed = 0, False, {}, False
        self.note_versions()

    def _on_grad(self, index: int, param: torch.nn.Parameter) -> None:
        bucket = self._bucket_of[index]
        if bucket < self._num_sent:
            raise CollectiveError(
                f"parameter {self.names[index]!r} got a gradient after its bucket was sent: a backward after the last "
                "opt.backward of the step, reentrant checkpointing, or a backward inside backward",
                "one gradient a parameter in the last opt.backward of a step, and no backward between it and opt.step()",
                "last=False before the last micro-batch; torch.utils.checkpoint(..., use_reentrant=False); or "
                "DistributedOptimizer(..., overlap=False)",
            )
        if not self._ours:
            self._on_foreign_grad(index)
        elif self._of_another and self._is_fresh(index):
            self._of_another.discard(index)
        if param.grad.is_sparse:
            return  # torch adds up further ones; which rows they have is known at the end of the step
        if not self._ours or self._seen[index]:
            self._adopt(index)
            self._versions[bucket] = self.flats[bucket]._version
            return
        self._seen[index] = 1
        self._missing[bucket] -= 1
        if not self._missing[bucket]:
            self._adopt_bucket(bucket)
            while self._armed and self._num_sent < len(self.buckets) and not self._missing[self._num_sent]:
                self._send_next()

    def _on_foreign_grad(self, index: int) -> None:
        if self._comm.backward_of:
            self._of_another.add(index)
        elif self._is_fresh(index):
            self._of_another.discard(index)
        self.foreign = True

    def first_not_finite(self) -> str:
        """The name of the first parameter whose mean gradient holds a NaN or an infinity; "" where there is none."""
        return next((name for name, view in zip(self.names, self._shown) if not view.isfinite().all()), "")

    def note_versions(self) -> None:
        """Gradients are as they should be: changes from here on are somebody else's."""
        self._versions = [flat._version for flat in self.flats]

    def _check_untouched(self) -> None:
        if any(flat._version != version for flat, version in zip(self.flats, self._versions)):
            raise LossError(
                f"gradients were changed between backward and opt.step() at {self._comm.where}: they are not averaged yet, so "
                "clipping or scaling them there means something else",
                "untouched gradients until opt.step() or opt.synchronize()",
                "opt.clip_grad_norm_(1.0) instead of torch's function; ht.GradScaler instead of torch's; or opt.synchronize() first",
            )

    def _is_fresh(self, index: int) -> bool:
        """Whether the gradient that just came found none there before (autograd adds to a view in place)."""
        return self.params[index].grad is not self._views[index]

    def _is_sent(self, index: int) -> bool:
        return self._bucket_of[index] < self._num_sent

    def _adopt_bucket(self, number: int) -> None:
        """Make the gradients of a bucket, all there and dense, views of it: in one call, while they are in cache."""
        grads, views = [], []
        members = self._members[number]
        if len(members) == 1 and self.way.takes(number) and self._take(number, *members[0]):
            return
        for param, view in members:
            grad = param.grad
            if grad is not view:
                grads.append(grad)
                views.append(view)
                param.grad = view
        if grads:
            if torch.is_grad_enabled():  # with create_graph=True: the buffers would join the graph
                with torch.no_grad():
                    torch._foreach_copy_(views, grads)
            else:
                torch._foreach_copy_(views, grads)
        self._versions[number] = self.flats[number]._version

    def _take(self, number: int, param: torch.nn.Parameter, view: torch.Tensor) -> bool:
        """Let a bucket of one large parameter lie where backward has made its gradient: nothing is copied."""
        if _references(param) > self._lonely:  # a hook of the user's keeps this rank's gradient
            return False
        grad = param.grad
        if grad is view or not (grad.dtype is view.dtype and grad.stride() == view.stride() and is_alone(grad)):
            return False
        flat = grad.as_strided((self.buckets[number].numel,), (1,), grad.storage_offset())
        self.way.take(number, flat)
        self._views[self.buckets[number].slots[0].param] = grad
        self._members[number][0] = (param, grad)
        self._versions[number] = flat._version
        return True

    def _adopt(self, index: int) -> bool:
        """Make the parameter's gradient its view of the bucket; False where it has none (the view is then zero)."""
        grad, view = self.params[index].grad, self._views[index]
        if grad is view:
            return True
        if grad is None:
            view.zero_()
            return False
        if grad.is_sparse:
            grad = grad.coalesce()
            self._rows[index] = grad.indices()[0]
        with torch.no_grad():
            view.copy_(grad.to_dense() if grad.is_sparse else grad)
        self.params[index].grad = view
        return True

    def _send_next(self) -> None:
        number = self._num_sent
        self._num_sent += 1
        self.way.send(number)
        self._versions[number] = self.flats[number]._version


def check_same_params(specs: list[ParamSpec], comm: Communicator, name: str) -> None:
    """Raise CollectiveError on all ranks, naming rank, tensor and shapes, where the ranks' parameters differ."""
    lines = [
        f"{s.name} {list(s.shape)} {str(s.dtype).removeprefix('torch.')}" + (f" strides {list(s.strides)}" if s.strides else "")
        for s in specs
    ]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(comm.gather_objects(digest, f"{name}.plan"))) == 1:
        return
    everyone = comm.gather_objects(lines, f"{name}.plan.lines")
    found = []
    for rank, theirs in enumerate(everyone):
        if theirs == everyone[0]:
            continue
        if len(theirs) != len(everyone[0]):
            found.append(f"  rank {rank} has {len(theirs)} trainable tensors, rank 0 has {len(everyone[0])}")
        for mine, other in zip(everyone[0], theirs):
            if mine != other:
                found.append(f"  rank 0: {mine}; rank {rank}: {other}")
                break
    raise CollectiveError(
        "the ranks do not train the same parameters:\n" + "\n".join(found[:8]),
        "the same names, shapes and dtypes in the same order on every rank",
        "build the model from the same config on all ranks (look for sizes taken from local data)",
    )


def _view(flat: torch.Tensor, offset: int, numel: int, param: torch.Tensor) -> torch.Tensor:
    part = flat[offset : offset + numel]
    if param.is_complex():
        return torch.view_as_complex(part.view(*param.shape, 2))
    if is_dense(param):
        return part.as_strided(param.shape, param.stride(), part.storage_offset())
    return part.view(param.shape)


def _references(param: torch.nn.Parameter) -> int:
    return sys.getrefcount(param.grad)


@cache
def _references_of_a_lonely_one() -> int:
    """What `_references` says where nobody but the parameter holds its gradient: other numbers with other versions of torch."""
    found: list[int] = []
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.nn.Parameter(torch.ones(1, device="cpu"))
        weight.register_post_accumulate_grad_hook(lambda param: found.append(_references(param)))
        (2 * weight).sum().backward()
    return found[0]


def is_alone(grad: torch.Tensor) -> bool:
    """Whether nobody else can hold this dense gradient's memory: it is no part of a graph, and its storage has no other tensor.

    Example:
        >>> whole = torch.zeros(4)
        >>> is_alone(whole), is_alone(whole.view(2, 2)), is_alone(whole[1:])
        (True, False, False)
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None or grad.is_complex() or grad.requires_grad or not is_dense(grad):
        return False
    storage = grad.untyped_storage()
    return storage.nbytes() == grad.nbytes and count(storage._cdata) == 2  # the gradient, and `storage` here


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill one stretch of memory without a hole or an overlap, in whatever order.

    Example:
        >>> is_dense(torch.zeros(2, 3).t()), is_dense(torch.zeros(4)[::2])
        (True, False)
    """
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True
