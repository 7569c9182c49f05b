"""Gradients as views in flat buckets, summed over the ranks, each bucket sent as soon as backward has finished it.

Rules that keep ranks from waiting for each other for ever:
- buckets are sent strictly in index order, whatever order backward finishes them in on a rank;
- only an armed backward (the last one of a step) sends; `flush` sends what is left, also on a rank without data;
- a last small vector travels behind the buckets: the caller's numbers and which parameters this rank used.
"""

from __future__ import annotations

import hashlib
import math

import torch

from hvd_trainer.comm.api import Communicator, Pending
from hvd_trainer.errors import CollectiveError, LossError
from hvd_trainer.optim.buckets import ParamSpec, plan_buckets


class Reducer:
    """Sums the gradients of a fixed list of parameters over all ranks.

    Args:
        named_params: (name, parameter) pairs, all with requires_grad, the same on all ranks.
        comm: the ranks.
        bucket_bytes: see `plan_buckets`.
        name: prefix of the collectives' names, unique in the job.

    Raises:
        CollectiveError: the ranks' parameters differ in number, name, shape or dtype; raised on all ranks.
    """

    def __init__(
        self, named_params: list[tuple[str, torch.nn.Parameter]], comm: Communicator, bucket_bytes: int, name: str
    ) -> None:
        self.params = [param for _, param in named_params]
        self._comm, self._name = comm, name
        specs = [ParamSpec(n, tuple(p.shape), p.dtype, p.device) for n, p in named_params]
        check_same_params(specs, comm, name)
        self.names = [spec.name for spec in specs]
        self.buckets = plan_buckets(specs, bucket_bytes)
        self.flats = [torch.zeros(b.numel, dtype=b.dtype, device=b.device) for b in self.buckets]
        self._views: list[torch.Tensor] = [torch.empty(0)] * len(specs)
        self._bucket_of = [0] * len(specs)
        for number, bucket in enumerate(self.buckets):
            for slot in bucket.slots:
                self._views[slot.param] = _view(self.flats[number], slot.offset, slot.numel, specs[slot.param])
                self._bucket_of[slot.param] = number
        self.foreign = False  # a backward that is not ours left gradients since the last `flush`, `discard` or `expect`
        self._ours = self._armed = False
        self._seen = [False] * len(specs)  # by the armed backward, so far
        self._missing = [len(bucket.slots) for bucket in self.buckets]
        self._sent: list[Pending] = []
        # What every bucket was after the last gradient came in; a change by somebody else is found by it.
        self._versions = [flat._version for flat in self.flats]
        self._checks: list[torch.Tensor] = []  # one number a sent bucket, not finite where a gradient was not
        self._of_another = [False] * len(specs)
        self._rows: dict[int, torch.Tensor] = {}  # of sparse gradients: which rows this step's have
        self._handles = [
            param.register_post_accumulate_grad_hook(lambda _, index=index: self._on_grad(index))
            for index, param in enumerate(self.params)
        ]

    def begin(self, armed: bool) -> None:
        """A backward of ours starts; armed: a bucket is sent as soon as this backward has finished it. Until `end`."""
        self._seen = [False] * len(self.params)
        self._missing = [len(bucket.slots) for bucket in self.buckets]
        self._ours, self._armed = True, armed

    def end(self) -> None:
        """Backward is over: later gradients (of somebody else's loss) send nothing."""
        self._ours = self._armed = False

    def flush(self, numbers: list[float]) -> tuple[list[float], bool]:
        """Send what was not sent, wait for all, and leave the SUM over ranks in the buckets.

        Args:
            numbers: this rank's numbers, as many on every rank.

        Returns:
            The sums of `numbers` over all ranks, and whether all ranks' gradients were finite. Parameters that nobody
            used have `grad = None` afterwards, all others a view of their bucket.

        Raises:
            LossError: gradients were changed between backward and here, where they are not averaged yet.
        """
        self._check_untouched()
        # A bucket that is under way was complete when it was sent: it must not be touched any more.
        used = [self._is_sent(index) or self._adopt(index) for index in range(len(self.params))]
        sparse = [index in self._rows for index in range(len(self.params))]
        while len(self._sent) < len(self.buckets):
            self._send_next()
        self.was_finite = all(math.isfinite(check) for check in torch.stack(self._checks).tolist())
        counts = [float(flag) for flag in used + sparse]
        vector = torch.tensor([*numbers, float(not self.was_finite), *counts], dtype=torch.float64).to(self._comm.device)
        last = self._comm.allreduce_(vector, f"{self._name}.numbers")
        for pending in self._sent:
            pending.wait()
        self._sent, self._checks, self.foreign = [], [], False
        summed = last.wait().tolist()
        num_bad, flags = summed[len(numbers)], summed[len(numbers) + 1 :]
        num_used, num_sparse = flags[: len(used)], flags[len(used) :]
        used_anywhere = [count > 0 for count in num_used]
        self._find_rows([i for i, (n, k) in enumerate(zip(num_used, num_sparse)) if k and n == k])
        for param, view, is_used in zip(self.params, self._views, used_anywhere):
            param.grad = view if is_used else None
        self._note_versions()
        return summed[: len(numbers)], num_bad == 0

    def make_sparse(self) -> None:
        """Where every gradient of a parameter was sparse, give the optimizer a sparse one again: the rows of all ranks.

        Optimizers that take sparse gradients treat rows that are not there differently (SparseAdam leaves their moments).
        """
        for index, rows in self._rows.items():
            view = self._views[index]
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

    def scale_(self, factor: float) -> None:
        """Multiply all buckets, in place."""
        if factor != 1.0:
            for flat in self.flats:
                flat.mul_(factor)

    def holds_gradients(self) -> bool:
        """Whether any parameter holds a gradient that is not zero."""
        grads = [param.grad for param in self.params if param.grad is not None]
        return any(grad.is_sparse or bool(grad.count_nonzero()) for grad in grads)

    def holds_anything(self) -> bool:
        """Whether a gradient is there, or a bucket under way."""
        return bool(self._sent) or any(param.grad is not None for param in self.params)

    def holds_gradients_of_another(self) -> bool:
        """Whether a gradient that is there now came from the backward of another optimizer's loss."""
        return any(flag and param.grad is not None for flag, param in zip(self._of_another, self.params))

    def detach(self) -> None:
        """Take the hooks off; gradients stay where they are."""
        for handle in self._handles:
            handle.remove()

    def discard(self) -> None:
        """Wait for what is under way and forget it (the caller throws this step's gradients away)."""
        for pending in self._sent:
            pending.wait()
        self._sent, self._checks, self.foreign, self._rows = [], [], False, {}
        self._note_versions()

    def _on_grad(self, index: int) -> None:
        if self._is_sent(index):
            raise CollectiveError(
                f"parameter {self.names[index]!r} got a gradient after its bucket was sent: a backward after the last "
                "opt.backward of the step, reentrant checkpointing, or a backward inside backward",
                "one gradient a parameter in the last opt.backward of a step, and no backward between it and opt.step()",
                "last=False before the last micro-batch; torch.utils.checkpoint(..., use_reentrant=False); or "
                "DistributedOptimizer(..., overlap=False)",
            )
        from_another = bool(self._comm.backward_of) and not self._ours
        self._of_another[index] = from_another or (self._of_another[index] and not self._is_fresh(index))
        self.foreign = self.foreign or not self._ours
        if self.params[index].grad.is_sparse:
            return  # torch adds up further ones; which rows they have is known at the end of the step
        bucket = self._bucket_of[index]
        self._adopt(index)
        self._versions[bucket] = self.flats[bucket]._version
        if not self._armed:
            return
        if not self._seen[index]:
            self._seen[index] = True
            self._missing[bucket] -= 1
        while len(self._sent) < len(self.buckets) and self._missing[len(self._sent)] == 0:
            self._send_next()

    def first_not_finite(self) -> str:
        """The name of the first parameter whose gradient holds a NaN or an infinity; "" where there is none."""
        return next((name for name, view in zip(self.names, self._views) if not view.isfinite().all()), "")

    def _note_versions(self) -> None:
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
        return self._bucket_of[index] < len(self._sent)

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
        with torch.no_grad():  # with create_graph=True the hook runs in grad mode: the buffers would join the graph
            view.copy_(grad.to_dense() if grad.is_sparse else grad)
        self.params[index].grad = view
        return True

    def _send_next(self) -> None:
        number = len(self._sent)
        flat = self.flats[number]
        # While it is in cache: NaN and infinity survive a sum. 16-bit floats are summed in 32 bits.
        self._checks.append(flat.sum(dtype=torch.float32 if flat.element_size() < 4 else None).double())
        self._sent.append(self._comm.allreduce_(flat, f"{self._name}.bucket{number}"))
        self._versions[number] = flat._version


def check_same_params(specs: list[ParamSpec], comm: Communicator, name: str) -> None:
    """Raise CollectiveError on all ranks, naming rank, tensor and shapes, where the ranks' parameters differ."""
    lines = [f"{s.name} {list(s.shape)} {str(s.dtype).removeprefix('torch.')}" for s in specs]
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


def _view(flat: torch.Tensor, offset: int, numel: int, spec: ParamSpec) -> torch.Tensor:
    part = flat[offset : offset + numel]
    if spec.dtype.is_complex:
        return torch.view_as_complex(part.view(*spec.shape, 2))
    return part.view(spec.shape)

