"""Where each parameter's gradient lies: in the flat buffers of a way while a step is computed, and where the means are after it."""

from __future__ import annotations

from typing import Any, Optional

import torch

from hvd_trainer.errors import LossError
from hvd_trainer.optim.buckets import Bucket
from hvd_trainer.optim.kernels import without_grad
from hvd_trainer.optim.layout import view_like
from hvd_trainer.optim.sole_owner import is_alone, references, references_of_a_lonely_one


class GradientPlaces:
    """Makes gradients views of the buckets, notices who else writes to them, and shows the means in their stead.

    Args:
        params: all trained ones.
        buckets: the place of each.
        way: has the buffers; see `ways.Messages`.

    Attributes:
        flats: the buffers of this step, one a bucket.
        versions: how often each was written to, as torch counts, when its gradients were as they should be.
        shown: each parameter's view of the means.
        used: whether each parameter has a gradient on some rank, in the last averaging; None: all, as ever.
        rows: of parameters with sparse gradients, which rows this step's have.
    """

    def __init__(self, params: list[torch.nn.Parameter], buckets: list[Bucket], way: Any) -> None:
        self._params, self._buckets, self._way = params, buckets, way
        self._sets = [(flats, self.views_of(flats)) for flats in way.flat_sets]
        self.shown = self._sets[0][1] if way.results is way.flat_sets[0] else self.views_of(way.results)
        self._delivered = self.shown
        self._all_members = [
            [[(params[slot.param], views[slot.param]) for slot in bucket.slots] for bucket in buckets] for _, views in self._sets
        ]
        self.used: Optional[list[bool]] = None
        self.rows: dict[int, torch.Tensor] = {}
        self._lonely = references_of_a_lonely_one()
        self._turn = -1
        self.next_set()

    def next_set(self) -> None:
        """The buffers for the next step's gradients: others may still read the last step's."""
        self._turn = (self._turn + 1) % len(self._sets)
        self.flats, self._views = self._sets[self._turn]
        self._members = self._all_members[self._turn]
        self.note_versions()

    def views_of(self, flats: list[torch.Tensor]) -> list[torch.Tensor]:
        """Each parameter's place in buffers that are laid out like the buckets, in its shape and, if dense, its strides."""
        views = [torch.empty(0)] * len(self._params)
        for number, bucket in enumerate(self._buckets):
            for slot in bucket.slots:
                views[slot.param] = view_like(flats[number], slot.offset, slot.numel, self._params[slot.param])
        return views

    # -- while a step is computed -----------------------------------------------------------------------------------

    def is_fresh(self, index: int) -> bool:
        """Whether the gradient that just came found none there before (autograd adds to a view in place)."""
        return self._params[index].grad is not self._views[index]

    def adopt_bucket(self, number: int) -> bool:
        """Make the gradients of a bucket views of it, in one call, while they are in cache; False where one is missing, or sparse."""
        grads, views, is_complete = [], [], True
        members = self._members[number]
        if len(members) == 1 and self._way.takes(number) and self._take(number, *members[0]):
            return True
        for param, view in members:
            grad = param.grad
            if grad is view:
                continue
            if grad is None or grad.is_sparse:
                is_complete = False
                continue
            grads.append(grad)
            views.append(view)
            param.grad = view
        if grads:
            without_grad(torch._foreach_copy_, views, grads)  # the buffers must not join a graph, of a backward with create_graph=True
        self.versions[number] = self.flats[number]._version
        return is_complete

    def adopt(self, index: int) -> bool:
        """Make the parameter's gradient its view of the bucket; False where it has none (the view is then zero)."""
        grad, view = self._params[index].grad, self._views[index]
        if grad is view:
            return True
        if grad is None:
            view.zero_()
            return False
        if grad.is_sparse:
            grad = grad.coalesce()
            self.rows[index] = grad.indices()[0]
        with torch.no_grad():
            view.copy_(grad.to_dense() if grad.is_sparse else grad)
        self._params[index].grad = view
        return True

    def zero_grad(self) -> None:
        """Zeros of this rank's own in every gradient that is there."""
        for param, view in zip(self._params, self._views):
            if param.grad is not None:
                param.grad = view.zero_()
        self.note_versions()

    def note_versions(self) -> None:
        """Gradients are as they should be: changes from here on are somebody else's."""
        self.versions = [flat._version for flat in self.flats]

    def find_cleared(self, where: str, num_sent: int) -> list[int]:
        """The parameters whose gradients were sent, and then set to None.

        Args:
            where: the step, for the message.
            num_sent: buckets that were sent.

        Raises:
            LossError: somebody has changed gradients since, or put others in the place of those that were sent.
        """
        is_touched = [flat._version for flat in self.flats] != self.versions
        cleared = []
        for number, members in enumerate(self._members[:num_sent]):
            for place, (param, view) in enumerate(members):
                if param.grad is not view:
                    is_touched = is_touched or param.grad is not None
                    cleared.append(self._buckets[number].slots[place].param)
        if is_touched:
            raise LossError(
                f"gradients were changed between backward and opt.step() at {where}: they are not averaged yet, so "
                "clipping or scaling them there means something else",
                "untouched gradients until opt.step() or opt.synchronize()",
                "opt.clip_grad_norm_(1.0) instead of torch's function; ht.GradScaler instead of torch's; or opt.synchronize() first",
            )
        return cleared

    # -- when it is averaged ----------------------------------------------------------------------------------------

    @property
    def all_used(self) -> bool:
        """Whether every parameter had a gradient on some rank in the last averaging, and none a sparse one."""
        return self.used is None or (all(self.used) and not self.rows)

    def deliver(self) -> None:
        """Every used parameter's `grad` is now its view of the mean, this rank's own to change; `grad = None` of others."""
        if self._way.results_are_own:
            self.show()
            return
        for flat, result in zip(self.flats, self._way.results):
            flat.copy_(result)
        self._set_grads(self._views)
        self.note_versions()

    def show(self) -> None:
        """As `deliver`, without a copy: views of what all ranks of the node may share, to be read only."""
        self._set_grads(self.shown)

    def are_delivered(self) -> bool:
        """Whether the gradients still are the very views that were delivered."""
        return all(param.grad is view for param, view in zip(self._params, self._delivered))

    def make_sparse(self) -> None:
        """Where every gradient of a parameter was sparse, give the optimizer a sparse one again: the rows of all ranks.

        Optimizers that take sparse gradients treat rows that are not there differently (SparseAdam leaves their moments).
        """
        for index, rows in self.rows.items():
            view = self._delivered[index]
            # Rows of a mask are sorted, unique and inside the tensor.
            self._params[index].grad = torch.sparse_coo_tensor(
                rows[None], view[rows], view.shape, is_coalesced=True, check_invariants=False
            )
        self.rows = {}

    # -- inside -----------------------------------------------------------------------------------------------------

    def _take(self, number: int, param: torch.nn.Parameter, view: torch.Tensor) -> bool:
        """Let a bucket of one large parameter lie where backward has made its gradient: nothing is copied."""
        if references(param) > self._lonely:  # a hook of the user's keeps this rank's gradient
            return False
        grad = param.grad
        if grad is view or not (grad.dtype is view.dtype and grad.stride() == view.stride() and is_alone(grad)):
            return False
        flat = grad.as_strided((self._buckets[number].numel,), (1,), grad.storage_offset())
        self._way.take(number, flat)
        self._views[self._buckets[number].slots[0].param] = grad
        self._members[number][0] = (param, grad)
        self.versions[number] = flat._version
        return True

    def _set_grads(self, views: list[torch.Tensor]) -> None:
        self._delivered = views
        if self.used is None:
            for param, view in zip(self._params, views):
                param.grad = view
        else:
            for param, view, is_used in zip(self._params, views, self.used):
                param.grad = view if is_used else None
