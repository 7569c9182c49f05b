"""Gradients as views in flat buckets, averaged over the ranks, each bucket sent as soon as backward has finished it.

Rules that keep ranks from waiting for each other for ever:
- buckets are sent strictly in index order, whatever order backward finishes them in on a rank;
- only an armed backward (the last one of a step) sends; `flush` sends what is left, also on a rank without data;
- a few numbers travel behind the buckets; only where a parameter has no gradient on some rank, flags for each follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import CollectiveError, LossError
from hvd_trainer.optim.buckets import Bucket, ParamSpec, plan_buckets
from hvd_trainer.optim.gradient_places import GradientPlaces
from hvd_trainer.optim.same_params import check_same_params
from hvd_trainer.optim.shared_sums import SharedSums
from hvd_trainer.optim.small_messages import SmallMessages
from hvd_trainer.optim.small_sums import SmallSums
from hvd_trainer.optim.ways import Messages, Numbers, Sums

Way = Union[Messages, SharedSums, SmallSums, SmallMessages]


class Reducer:
    """Averages the gradients of a fixed list of parameters over all ranks.

    Args:
        named_params: (name, parameter) pairs, all with requires_grad, the same on all ranks.
        comm: the ranks.
        bucket_bytes: see `plan_buckets`.
        name: prefix of the collectives' names, unique in the job.
        groups: the number of each parameter's group; a bucket holds one group.
        open_way: makes what carries the buckets; messages where it is not given.

    Attributes:
        places: where gradients lie, and how the means are shown.
        foreign: a backward that is not ours left gradients since the last `flush`, `discard` or `begin_window`.

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
        self.places = GradientPlaces(self.params, self.buckets, self.way)
        self.foreign = False
        self._sends_early = self.way.sends_early
        self._ours = self._armed = self._was_armed = False
        self._seen = bytearray(len(self.specs))  # by our backward, so far
        self._sizes = [len(bucket.slots) for bucket in self.buckets]
        self._missing = list(self._sizes)
        self._num_sent = 0
        self._of_another: set[int] = set()
        self._handles = [
            param.register_post_accumulate_grad_hook(partial(self._on_grad, index))
            for index, param in enumerate(self.params)
        ]

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
        if self._ours and not self._sends_early:
            for number in range(len(self.buckets)):
                if self.places.adopt_bucket(number) and self._armed and number == self._num_sent:
                    self._send_next()
        for number in range(self._num_sent, len(self.buckets)):  # this backward may have added to gradients that were there
            self.places.versions[number] = self.places.flats[number]._version
        self._ours = self._armed = False

    def flush(self, numbers: Numbers, weight: float = 0.0, plain: float = 0.0, nominal: float = 1.0) -> Sums:
        """Send what was not sent, wait for all; the means over ranks are then ready to be shown.

        Args:
            numbers: this rank's; whether it is irregular is found here.
            weight, plain, nominal: see `ways.Sums`; used where no bucket was sent yet.

        Raises:
            LossError: gradients were changed between backward and here, where they are not averaged yet; or some ranks have
                set one to None that others keep, or all ranks all of them (on all ranks).
        """
        places = self.places
        cleared = places.find_cleared(self._comm.where, self._num_sent)
        used: list[bool] = []
        if self._num_sent < len(self.buckets):
            # A bucket that is under way was complete when it was sent: it must not be touched any more.
            used = [bucket < self._num_sent or places.adopt(index) for index, bucket in enumerate(self._bucket_of)]
            if not self._num_sent:
                self.way.announce(weight, plain, nominal)
            while self._num_sent < len(self.buckets):
                self._send_next()
        is_irregular = bool(places.rows or cleared) or not all(used)
        sums = self.way.finish(replace(numbers, irregular=1.0) if is_irregular else numbers)
        self._num_sent, self.foreign, self._was_armed = 0, False, False
        places.used = None
        try:
            if sums.irregular:
                self._find_used(used or [True] * len(self.params), cleared)
        finally:
            places.next_set()  # as the way has done: after an error all ranks may throw the step away and go on
        return sums

    def _find_used(self, used: list[bool], cleared: list[int]) -> None:
        """Who has a gradient on some rank, and whose rows; a parameter that is cleared on all ranks has none, as in torch."""
        flags = [float(flag) for flag in used]
        above = self._comm.size + 1.0  # counts those that cleared: in one number beside those that did not
        for index in cleared:
            flags[index] = above
        sparse = [float(index in self.places.rows) for index in range(len(self.params))]
        flags = self.way.exchange(flags + sparse, "used")
        num_used, num_sparse = [count % above for count in flags[: len(used)]], flags[len(used) :]
        for name, kept, count in zip(self.names, num_used, flags):
            if kept and count >= above:
                raise LossError(
                    f"at {self._comm.where} the gradient of {name!r} was set to None after backward on {count // above:g} of "
                    f"{self._comm.size} ranks, when it had been sent",
                    "the same on all ranks: their sum holds it already",
                    "set it to None on every rank, or DistributedOptimizer(..., overlap=False)",
                )
        self.places.used = [count > 0 for count in num_used]
        # Asked of the sums, so that a rank without data errs with the others.
        if not any(self.places.used) and any(count >= above for count in flags[: len(used)]):
            raise LossError(
                f"at {self._comm.where} no parameter has a gradient: all were set to None after backward, on every rank",
                "gradients that stay until opt.step()",
                "call opt.zero_grad() or model.zero_grad() only after opt.step(); opt.zero_grad() in place of it throws a step away",
            )
        self._find_rows([i for i, (n, k) in enumerate(zip(num_used, num_sparse)) if k and n == k])

    def _find_rows(self, indices: list[int]) -> None:
        """The union over ranks of the rows in sparse gradients; all ranks pass the same parameters."""
        pending = []
        for index in indices:
            mask = torch.zeros(len(self.params[index]), dtype=torch.int32, device=self._comm.device)
            if index in self.places.rows:
                mask[self.places.rows[index]] = 1
            pending.append(self._comm.allreduce_(mask, f"{self._name}.rows{index}", "max"))
        self.places.rows = {index: each.wait().nonzero()[:, 0] for index, each in zip(indices, pending)}

    def begin_window(self) -> bool:
        """A step begins: False where gradients that are not zero are left over from before."""
        if self.holds_gradients():
            return False
        self.foreign = False
        self.places.note_versions()  # zeros may have been written, and a parameter that gets no gradient keeps them
        if not self.way.results_are_own:
            # Zeros that all ranks share, after model.zero_grad(set_to_none=False): autograd would add into them.
            for param, shown in zip(self.params, self.places.shown):
                if param.grad is shown:
                    param.grad = None
        return True

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
        self._num_sent, self.foreign, self._was_armed = 0, False, False
        self.places.rows = {}
        self.places.note_versions()

    def _on_grad(self, index: int, param: torch.nn.Parameter) -> None:
        if self._ours and not self._sends_early and not self._of_another and not self._num_sent:
            return  # taken over in `end`, all at once
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
            if self._comm.backward_of:
                return  # where two optimizers hold a parameter, its gradient lies where the one whose backward this is has put it
        elif self._of_another and self.places.is_fresh(index):
            self._of_another.discard(index)
        if param.grad is None or param.grad.is_sparse:  # no name for it: who else holds it is counted below
            return  # taken by a hook of the user's; or torch adds up further ones, whose rows are known at the end of the step
        if not self._ours or self._seen[index]:
            places = self.places
            places.adopt(index)
            places.versions[bucket] = places.flats[bucket]._version
            return
        self._seen[index] = 1
        self._missing[bucket] -= 1
        if not self._missing[bucket]:
            self.places.adopt_bucket(bucket)
            while self._armed and self._num_sent < len(self.buckets) and not self._missing[self._num_sent]:
                self._send_next()

    def _on_foreign_grad(self, index: int) -> None:
        if self._comm.backward_of:
            self._of_another.add(index)
        elif self.places.is_fresh(index):
            self._of_another.discard(index)
        self.foreign = True

    def first_not_finite(self) -> str:
        """The name of the first parameter whose mean gradient holds a NaN or an infinity; "" where there is none."""
        return next((name for name, view in zip(self.names, self.places.shown) if not view.isfinite().all()), "")

    def _send_next(self) -> None:
        number = self._num_sent
        self._num_sent += 1
        self.way.send(number)
        places = self.places
        places.versions[number] = places.flats[number]._version
