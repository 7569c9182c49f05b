"""The errors of an optimizer step: each is raised on all ranks, from reduced numbers, before a parameter was changed."""

from __future__ import annotations

import math

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import LossError, NonFiniteError
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.ways import Sums


def check_sums(sums: Sums, total: float, reducer: Reducer, comm: Communicator, name: str, looks_itself: bool) -> None:
    """Raise where the sums over all ranks say that there is no mean to step with.

    Args:
        sums: of all ranks.
        total: of this rank's losses.
        reducer: holds the gradients.
        comm: the ranks.
        name: of the collectives that find out which rank is to blame.
        looks_itself: a scaler looks for gradients that are not finite.

    Raises:
        LossError: both kinds of backward, or weight 0 on all ranks, or parameters that somebody else has changed.
        NonFiniteError: a loss or a gradient.
    """
    where = comm.where
    if sums.plain and sums.ours:
        raise LossError(
            f"at {where} {sums.plain:g} ranks called loss.backward() and {sums.ours:g} called opt.backward(...)",
            "one of the two, the same on all ranks",
            "use opt.backward(ht.Weighted(total, weight)) everywhere",
        )
    if not math.isfinite(sums.total):
        raise_loss(comm, total, name)
    if sums.bad and not looks_itself:
        raise_gradient(comm, reducer, name)
    if sums.weight == 0:
        raise LossError(
            f"the loss has weight 0 on every rank at {where}: there is nothing to average",
            "at least one sample (token, pixel) that counts, on some rank",
            "look for a batch whose labels are all ignored, and skip it on all ranks",
        )
    if sums.changed:
        raise LossError(
            f"parameters were changed before {where} by somebody else than opt.step(): with the update divided among the ranks "
            "they lie in memory that all ranks of the node share, so that a change by each rank is made several times",
            "parameters that only opt.step() changes",
            'ht.DistributedOptimizer(..., update_by="tensors")',
        )


def raise_loss(comm: Communicator, total: float, name: str) -> None:
    """A loss that is not finite."""
    totals = comm.gather_objects(total, f"{name}.non_finite")
    ranks = [rank for rank, each in enumerate(totals) if not math.isfinite(each)]
    raise NonFiniteError(
        f"the loss is {', '.join(f'{totals[r]} on rank {r}' for r in ranks) or 'not finite'} at {comm.where}; no parameter was changed",
        "a finite loss",
        "lower the learning rate, warm up longer, clip (clip_norm=1.0), or look at this step's data",
    )


def raise_gradient(comm: Communicator, reducer: Reducer, name: str) -> None:
    """A gradient that is not finite, though the loss is."""
    finite = comm.gather_objects(reducer.way.was_finite, f"{name}.non_finite_gradient")
    ranks = ", ".join(str(rank) for rank, was_finite in enumerate(finite) if not was_finite)
    if not ranks and reducer.first_not_finite():
        raise NonFiniteError(
            f"the averaged gradient of {reducer.first_not_finite()!r} does not fit into what travels ({reducer.way.text}) at "
            f"{comm.where}; no parameter was changed",
            "gradients up to 65504 in fp16",
            'compression="bf16", or an ht.GradScaler',
        )
    if not ranks:  # squares of finite gradients
        raise_norm(math.inf, comm)
    raise NonFiniteError(
        f"the gradient of {reducer.first_not_finite()!r} is not finite on rank {ranks} at {comm.where}, though the "
        "loss is; no parameter was changed",
        "finite gradients",
        "look for sqrt or log at 0, a division by 0, or norms of zero vectors; torch.autograd.set_detect_anomaly(True) finds it",
    )


def raise_norm(norm: float, comm: Communicator) -> None:
    """A norm that is not finite."""
    raise NonFiniteError(
        f"the norm of the averaged gradient is {norm} at {comm.where}; no parameter was changed",
        "a finite gradient",
        "lower the learning rate, warm up longer, or look at this step's data",
    )
