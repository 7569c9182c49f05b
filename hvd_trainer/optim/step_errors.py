"""The errors of an optimizer step: each is raised on all ranks, from reduced numbers, before a parameter was changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import LossError, NonFiniteError
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.ways import Sums

# What `Numbers.changed` says of a rank, added up over the ranks: sums of one of them stay below the next (up to a million ranks).
STATE_WRITTEN = 2.0**-20  # optimizer state that is not this rank's alone was changed in place
PARAMS_WRITTEN = 1.0
BACKWARD_FAILED = 2.0**20


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
    if sums.changed >= PARAMS_WRITTEN:
        raise LossError(
            f"parameters were changed before {where} by somebody else than opt.step(): with the update divided among the ranks "
            "they lie in memory that all ranks of the node share, so that a change by each rank is made several times",
            "parameters that only opt.step() changes",
            'ht.DistributedOptimizer(..., update_by="tensors")',
        )


def raise_failed_backward(has_failed: bool, comm: Communicator, name: str) -> NoReturn:
    """Some rank's backward of this step has raised, and somebody went on."""
    everyone = comm.gather_objects(has_failed, f"{name}.failed_backward")
    raise failed_backward(comm.where, [rank for rank, each in enumerate(everyone) if each])


def failed_backward(where: str, ranks: Sequence[int]) -> LossError:
    """Where the rank that knows is asked for more."""
    return LossError(
        f"opt.backward raised on rank {', '.join(map(str, ranks))} at {where}: of the gradients of this step only a part is there; no "
        "parameter was changed",
        "a step of which every backward has returned",
        "opt.zero_grad() on all ranks, in place of opt.step(), throws this step away",
    )


def raise_written_state(keys: Sequence[str], ranks: Sequence[int], comm: Communicator, is_shared: bool) -> NoReturn:
    """Optimizer state that is not one rank's, or not one parameter's, alone was changed in place.

    Args:
        keys: of the state.
        ranks: who did.
        comm: the ranks.
        is_shared: the ranks of the node share the state; else only parameters share their counters.
    """
    names, key = ", ".join(map(repr, keys)), keys[0]
    if is_shared:
        why = "with the update divided among the ranks it lies in memory that all ranks of the node share, so that each rank's change was made on top of the others'"
    else:
        why = "it is one number for many parameters, so that each parameter's change was made on top of the others'"
    raise LossError(
        f"the optimizer's {names} was changed in place before {comm.where}, on rank {', '.join(map(str, ranks))}: {why}; no parameter was changed",
        "state that only opt.step() changes in place, or zeros in all of it (a reset)",
        f"load a checkpoint, for this state is spoilt; then change it on all ranks by putting new tensors there (opt.state[p][{key!r}] = "
        f'opt.state[p][{key!r}] * 0.5), or after opt.release(), or with ht.DistributedOptimizer(..., update_by="tensors")',
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
