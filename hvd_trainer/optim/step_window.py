"""What one step collects, from its first backward to the means over all ranks: losses, their weights, and who had a part in it."""

from __future__ import annotations

import contextlib
import math
from typing import Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import ConfigError, LossError
from hvd_trainer.optim import step_errors
from hvd_trainer.optim.current_reducer import CurrentReducer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.optim.kernels import run_backward
from hvd_trainer.optim.loss import as_sum
from hvd_trainer.optim.same_rates import SameRates
from hvd_trainer.optim.updater import Updater
from hvd_trainer.optim.ways import Numbers
from hvd_trainer.values import Weighted

NOTHING = contextlib.nullcontext()


class StepWindow:
    """The window of one step after the other.

    Args:
        current: finds the reducer.
        updater: is told what was averaged.
        comm: the ranks.
        name: of the optimizer, as prefix of the collectives' names.
        loss_reduction: "mean" or "sum" for plain tensors, or None.
        overlap: the last backward of a step sends.
        nominal_weight: what losses are divided by before backward; None: 1 in the first step, which finds it.
        rates: of the optimizer, to be equal on all ranks.

    Attributes:
        is_ours: `opt.backward` was called in this step.
        is_averaged: the means were delivered before the step.
        is_scaled: a scaler multiplies the gradients, and looks for overflow itself.
        is_broken: a backward of this step raised: its gradients are there in part.

    Raises:
        ConfigError: another loss_reduction.
    """

    def __init__(
        self,
        current: CurrentReducer,
        updater: Updater,
        comm: Communicator,
        name: str,
        loss_reduction: Optional[str],
        overlap: bool,
        nominal_weight: Optional[float],
        rates: SameRates,
    ) -> None:
        if loss_reduction not in (None, "mean", "sum"):
            raise ConfigError(f"loss_reduction={loss_reduction!r}", '"mean" or "sum"', "or return ht.Weighted from the loss")
        self._current, self._updater, self._comm, self._name = current, updater, comm, name
        self._loss_reduction, self._overlap = loss_reduction, overlap
        self.nominal_weight, self._rates = nominal_weight, rates
        self.clear()

    def clear(self) -> None:
        """The step is over, or thrown away."""
        self.is_ours = self.is_averaged = self.is_scaled = self.is_broken = False
        self._weight = 0.0
        self._total: Union[float, torch.Tensor] = 0.0

    def backward(
        self, step: int, loss: Union[Weighted, torch.Tensor, None], weight: Optional[float], last: bool, scaler: Optional[GradScaler]
    ) -> None:
        """See `DistributedOptimizer.backward`; `step` counts from 1."""
        current, comm = self._current, self._comm
        reducer = current.find()
        comm.where = f"step {step}"
        if not self.is_ours and not reducer.begin_window():
            raise LossError(
                f"gradients are left over when step {step} begins",
                "none: they would be added to this step's",
                "call opt.zero_grad() after opt.step()",
            )
        if self.is_broken:
            raise step_errors.failed_backward(comm.where, [comm.rank])
        if self.is_averaged:
            raise LossError(
                f"opt.backward after opt.synchronize (or clipping) in step {step}",
                "all backwards of a step before its gradients are averaged",
                "pass last=False before the last micro-batch, clip after it",
            )
        self.is_ours = True
        is_last = last and self._overlap and not comm.talks_in_backward
        nominal = self.nominal_weight or 1.0
        if loss is None:
            if is_last:
                reducer.arm(self._weight, nominal)
            return
        total, seed, local_weight = as_sum(loss, weight, self._loss_reduction)
        self.is_scaled = self.is_scaled or scaler is not None
        factor = 1.0 if scaler is None else scaler.factor(comm.device)
        reducer.begin(is_last, self._weight + local_weight, nominal)
        comm.backward_of = self._name
        self.is_broken = True
        try:
            with current.norms.watching(step, local_weight, nominal, factor) if current.norms else NOTHING:
                # A new one each time: a gradient may come to lie in its memory (of `scale.squeeze() + ...`), and is added to later.
                run_backward(total, torch.full_like(total, seed * factor / nominal, requires_grad=False))
        finally:
            reducer.end()
            comm.backward_of = ""
        self.is_broken = False
        self._weight += local_weight
        if not seed:  # the mean over no sample is NaN, and counts nothing
            return
        if total.is_cpu:
            self._total += total.item() * seed
        else:  # stays a tensor until the step ends: reading it here would make a GPU wait for every micro-batch
            self._total = self._total + total.detach().double().sum() * seed

    def average(self, step: int, wants_whole: str = "") -> Optional[Weighted]:
        """Sum over all ranks and divide; raises on all ranks where there is no mean.

        Args:
            step: from 1.
            wants_whole: why this rank must see the whole gradient before the update; "" where it need not.

        Returns:
            The loss over all ranks; None where it is not known: gradients come from `loss.backward`.

        Raises:
            NonFiniteError, LossError: see `step_errors.check_sums`; and where gradients came from elsewhere, were cleared, or are
                there in part, as a backward raised.
            CollectiveError: the ranks' learning rates differ.
        """
        current, comm = self._current, self._comm
        reducer = current.reducer if self.is_ours else current.find(begins=False)
        comm.where = f"step {step}"
        plain = reducer.foreign if self.is_ours else any(param.grad is not None for param in reducer.params)
        if not self.is_ours and reducer.holds_gradients_of_another():
            raise LossError(
                f"at {comm.where} the gradients of this optimizer come from another DistributedOptimizer's backward: they "
                "have that one's scale and no weight here",
                "one optimizer for each loss",
                "put both sets of parameters into one optimizer as two param groups; or zero_grad() and call backward on this one",
            )
        if self._weight and not reducer.holds_anything():
            raise LossError(
                f"at {comm.where} opt.backward was called, but no parameter has a gradient",
                "gradients that stay until opt.step()",
                "call opt.zero_grad() or model.zero_grad() only after opt.step()",
            )
        self._total = float(self._total)
        wants_whole, aside, changed = self._updater.look(wants_whole)
        if self.is_broken:
            changed += step_errors.BACKWARD_FAILED
        numbers = Numbers(self._total, float(self.is_ours), 0.0, aside, changed, self._rates.number())
        sums = reducer.flush(numbers, self._weight + plain, float(plain), self.nominal_weight or 1.0)
        if sums.changed >= step_errors.BACKWARD_FAILED:
            step_errors.raise_failed_backward(self.is_broken, comm, self._name)
        step_errors.check_sums(sums, self._total, reducer, comm, self._name, self.is_scaled)
        self._rates.check(sums.rates, comm, self._name)
        if current.norms is not None:
            current.norms.report(step, reducer)
        if sums.ours and self.nominal_weight is None:
            # The first step went out unscaled; from now on gradients have ordinary magnitudes on their way.
            self.nominal_weight = power_of_two(sums.weight)
        self._updater.settle(sums, wants_whole)
        return None if sums.plain else Weighted(sums.total, sums.weight)

    def check_nothing_was_added(self) -> None:
        """Raise LossError where a backward came after the means were delivered."""
        if self._current.reducer.foreign:
            raise LossError(
                f"a backward after the gradients of {self._comm.where} were averaged added gradients of this rank alone",
                "no backward between opt.synchronize (or clipping) and opt.step()",
                "call all backwards of a step first",
            )


def power_of_two(weight: float) -> float:
    """The power of two next to `weight`: multiplying by it is exact, so the choice does not change a result.

    Example:
        >>> power_of_two(48.0), power_of_two(0.3), power_of_two(0.0)
        (64.0, 0.25, 1.0)
    """
    return 2.0 ** round(math.log2(weight)) if weight > 0 else 1.0
