"""`DistributedOptimizer`: the user's optimizer, fed with the exact mean gradient over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.heap import keep_freed_memory
from hvd_trainer.log import say
from hvd_trainer.optim.adascale import AdaScale
from hvd_trainer.optim.buckets import DEFAULT_BUCKET_BYTES
from hvd_trainer.optim.choose_way import WayChooser
from hvd_trainer.optim.clip import check_limit, clip_norm_, clip_value_
from hvd_trainer.optim.current_reducer import CurrentReducer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.optim.gradient_norms import NormsObserver
from hvd_trainer.optim.rates import REFERENCE, SCALE, forget_scale_where_changed, scale_groups
from hvd_trainer.optim.replicas import broadcast_model, broadcast_state, broadcast_tensors
from hvd_trainer.optim.same_rates import SameRates
from hvd_trainer.optim.saved_state import SavedState, split
from hvd_trainer.optim.scaling import RuleLike, checked_factor, range_warning, scaling_rule
from hvd_trainer.optim.schedules import Timeline
from hvd_trainer.optim.step_window import StepWindow, power_of_two
from hvd_trainer.optim.updater import Updater
from hvd_trainer.optim.wrappable import check_no_scheduler, check_wrappable, closure_refused, copy_refused
from hvd_trainer.plan import BatchPlan
from hvd_trainer.values import Weighted


class DistributedOptimizer(torch.optim.Optimizer):
    """Holds a torch optimizer; averages gradients over ranks, scales the learning rate, and steps the held optimizer.

    It is a torch Optimizer by interface, so that schedulers accept it, and passes `param_groups`, `state` and
    `defaults` of the held one through: nothing is copied, no state is dropped, no step is taken but by `step()`.

    With `opt.backward(Weighted(total, weight))` the gradient is exactly `d(sum of totals) / (sum of weights)` over all
    micro-batches and ranks, however uneven they are; a rank without data calls only `step()`. With a plain
    `loss.backward()` every rank that has gradients counts the same, and the reduction happens in `step()`.

    Args:
        optimizer: any torch optimizer; parameters, state and options are made equal to rank 0's, no state is dropped.
        comm: from `ht.init()`.
        lr_scaling: "linear", "sqrt", "none", a number > 0 or a ScalingRule. Rates are multiplied once, here.
        plan: gives global and reference batch; without it the global batch is `comm.size` times the reference.
        model: its buffers too are made equal to rank 0's, and its names are used in messages.
        named_parameters: without `model`, names for messages, as `model.named_parameters()` gives them.
        loss_reduction: "mean" or "sum", for plain tensors given to `backward`.
        clip_norm: clip the averaged gradient to this 2-norm in each `step()`; `last_grad_norm` has the norm before.
        clip_value: clamp each component of the averaged gradient.
        bucket_bytes: size of the flat buffers that travel, in bytes.
        overlap: send buckets during the last backward of a step, where that gains something: not for small models, nor up to 8 MiB of
            gradients in shared memory.
        compression: "bf16" or "fp16": what travels by messages is rounded to 16 bits, which halves it; parameters, sums and
            updates keep their width. Nothing is rounded where gradients go through shared memory.
        reduce_through: "shared" for memory that the ranks of one node share, "messages" for the engine's allreduce, or
            "auto": shared memory where all ranks are CPU ranks and the engine is mpi, else messages. On several nodes "shared"
            is shared memory inside each and messages between them, which are what `compression` then rounds.
        update_by: "tensors" for the optimizer's own step over the model's tensors, "shards" to divide it among the ranks of
            a node (with gradients in shared memory), or "auto": where the optimizer works element by element and ranks
            are on CPUs, over flat buffers, and in shards (LARS and LAMB, too) where gradients go through shared memory and the
            model is not tiny. Shards lie in memory that the ranks share: parameters and state must then be changed by `step()` only, which is
            checked, and they end, with a line that says so, where somebody must see whole gradients before the update.
        scheduler_is_rebased: allow a scheduler made before wrapping; for callers (ht.Trainer) that let it work in
            reference rates and scale what it says.

    Raises:
        ConfigError: no parameters, a rate that is negative or not finite, an unknown rule, a scheduler that was made
            on the optimizer before it was wrapped (it would undo the scaling).
        CollectiveError: the ranks' parameters differ.

    Example:
        >>> import hvd_trainer as ht
        >>> w = torch.nn.Parameter(torch.tensor([0.0]))
        >>> opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), ht.init(engine="single"))
        >>> opt.backward(ht.Weighted((w - 1).square().sum() * 2, 2)); opt.step(); opt.zero_grad()
        >>> round(w.item(), 4)
        0.2

    Source: Goyal et al. 2017, arXiv 1706.02677, section 3 (normalise by the total batch).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        comm: Communicator,
        *,
        lr_scaling: RuleLike = "linear",
        plan: Optional[BatchPlan] = None,
        model: Optional[torch.nn.Module] = None,
        named_parameters: Optional[Iterable[tuple[str, torch.nn.Parameter]]] = None,
        loss_reduction: Optional[str] = None,
        clip_norm: Optional[float] = None,
        clip_value: Optional[float] = None,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        overlap: bool = True,
        compression: Optional[str] = None,
        reduce_through: str = "auto",
        update_by: str = "auto",
        scheduler_is_rebased: bool = False,
    ) -> None:
        # Not super().__init__(): that would build groups and state of its own beside the held optimizer's.
        check_wrappable(optimizer, DistributedOptimizer)
        self.optimizer, self.comm = optimizer, comm
        self.last_loss: Optional[Weighted] = None
        self.steps_done = 0
        self._is_first_step = True
        self._name = comm.unique_name("opt")
        self._updater = Updater(optimizer, comm, self._name, update_by, clip_norm, clip_value)
        self._ways = WayChooser(reduce_through, update_by != "shards", compression)
        if model is not None:
            broadcast_model(model, comm)
            named_parameters = model.named_parameters()
        names = {id(param): name for name, param in named_parameters or ()}
        self._current = CurrentReducer(optimizer, comm, self._name, names, bucket_bytes, self._ways, self._updater)
        nominal_weight = power_of_two(plan.global_batch) if plan else None
        self._window = StepWindow(self._current, self._updater, comm, self._name, loss_reduction, overlap, nominal_weight, SameRates(optimizer))

        self._rule = scaling_rule(lr_scaling)
        if isinstance(self._rule, AdaScale):  # AdaScale
            self.add_norms_observer(self._rule)
            self._rule.attach(self)
        self.reference_batch = plan.reference if plan else None
        ratio = plan.batch_ratio if plan else Fraction(comm.size)
        self.lr_scale = checked_factor(self._rule, ratio * (self.reference_batch or 1), self.reference_batch or 1)
        self._scheduler_is_rebased = scheduler_is_rebased
        self._current.find()
        broadcast_state(optimizer, comm, f"{self._name}.state")
        forget_scale_where_changed(self.param_groups)
        self._scale_rates()
        broadcast_tensors([p for group in self.param_groups for p in group["params"]], comm, self._name)
        self._current.start_updates()
        if comm.size > 1:
            say(f"hvd_trainer: {self.describe_reduction()}", rank=comm.rank)
        doubt = range_warning(self._rule, ratio * (self.reference_batch or 1), self.reference_batch or 1, optimizer.defaults)
        if doubt:
            say(f"hint: {type(optimizer).__name__}: {doubt}", rank=comm.rank)

    # -- what torch code expects of an optimizer, passed through to the held one ------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    @property
    def clip_norm(self) -> Optional[float]:
        """The limit of the averaged gradient's 2-norm; None: not clipped. May be set between steps, the same on all ranks."""
        return self._updater.clip_norm

    @clip_norm.setter
    def clip_norm(self, limit: Optional[float]) -> None:
        self._updater.clip_norm = limit

    @property
    def clip_value(self) -> Optional[float]:
        """The limit of each component of the averaged gradient; None: not clamped. May be set between steps, the same on all ranks."""
        return self._updater.clip_value

    @clip_value.setter
    def clip_value(self, limit: Optional[float]) -> None:
        check_limit("clip_value", limit)
        self._updater.clip_value = limit

    @property
    def last_grad_norm(self) -> Optional[float]:
        """The averaged gradient's norm in the last step, before clipping; None without `clip_norm`."""
        return self._updater.last_grad_norm

    @last_grad_norm.setter
    def last_grad_norm(self, norm: Optional[float]) -> None:
        self._updater.last_grad_norm = norm

    @property
    def peak_lr(self) -> float:
        """The first group's reference rate times the scale: what the warm-up rises to."""
        return self.param_groups[0][REFERENCE] * self.lr_scale

    def schedule_at(self, step: int, timeline: Timeline) -> tuple[int, Timeline]:
        """Where schedules stand after `step` steps: there, or where the scaling rule's own clock is (AdaScale)."""
        return self._rule.schedule_at(step, timeline) if isinstance(self._rule, AdaScale) else (step, timeline)

    def __deepcopy__(self, memo: dict) -> None:
        # Not torch's way: it would patch `step` on this class and break every other wrapped optimizer.
        raise copy_refused()

    def __reduce_ex__(self, protocol: Any) -> None:
        raise copy_refused()

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r}, ranks={self.comm.size}, lr_scale={self.lr_scale:g})"

    def describe_reduction(self) -> str:
        """In words, how gradients travel and who updates."""
        count = len(self._current.reducer.buckets)
        return f"gradients in {count} bucket{'s' if count > 1 else ''} through {self._ways.why}{self._updater.text}"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the new group's rate is scaled like the others, its parameters made equal on all ranks."""
        self.optimizer.add_param_group(param_group)
        self._scale_rates()
        broadcast_tensors(self.param_groups[-1]["params"], self.comm, self.comm.unique_name(f"{self._name}.group"))

    def add_norms_observer(self, observer: NormsObserver) -> None:
        """Hand the squared norms of local and averaged gradients to `observer` in every step that it wants; on all ranks."""
        self._current.observe_norms(observer)

    def register_step_pre_hook(self, hook: Callable) -> Any:
        return self.optimizer.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Callable) -> Any:
        return self.optimizer.register_step_post_hook(hook)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; also ends the step's window, so that the weights collected so far are forgotten.

        In place of `step()` it throws a step away, on all ranks: it sends zeros for what this rank has not sent. Where others
        have called the last `backward` of that step, so must this rank have, a rank without data with None: else they wait for it.
        """
        reducer, norms = self._current.reducer, self._current.norms
        if norms is not None:
            norms.discard()
        reducer.discard()
        self._window.clear()
        if not set_to_none:
            reducer.places.zero_grad()
            self.optimizer.zero_grad(set_to_none=False)
            reducer.places.note_versions()
            return
        for group in self.param_groups:  # what torch's does, without its entry in a profile
            for param in group["params"]:
                param.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The held optimizer's ordinary state_dict (it loads into a plain optimizer) with one more key of ours."""
        saved = SavedState(
            steps_done=self.steps_done,
            lr_scale=self.lr_scale,
            nominal_weight=self._window.nominal_weight,
            reference_batch=None if self.reference_batch is None else str(self.reference_batch),
            num_ranks=self.comm.size,
            reduce_through=self._ways.taken,
            node_sizes=self._ways.node_sizes,
            rule=self._rule.state_dict() if isinstance(self._rule, AdaScale) else None,
            update_by=self._updater.to_save,
        )
        return saved.beside(self.optimizer.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict of this class or of a plain optimizer, the same on all ranks; schedulers stay attached. A collective.

        Rates that were scaled when they were saved keep that scale (the recipe of the first start, whatever the number
        of ranks now); rates from a plain optimizer are scaled as at wrapping.
        """
        theirs, saved = split(state_dict)
        self._updater.forget_guard()
        self.optimizer.load_state_dict(theirs)
        if saved is not None:
            self._resume(saved)
        scale_groups(self.param_groups, self.lr_scale)

    def release(self) -> None:
        """Give parameters and state back to each rank alone, as before the first step; the next step takes them again.

        For what all ranks do with the model between two runs or after the last: while the update is made in shards,
        parameters lie in memory that the ranks of the node share.
        """
        if self._updater.flat is not None:
            self._current.release()

    # -- one step: backward (once or several times), then step ------------------------------------------------------

    def backward(
        self,
        loss: Union[Weighted, torch.Tensor, None],
        *,
        weight: Optional[float] = None,
        last: bool = True,
        scaler: Optional[GradScaler] = None,
    ) -> None:
        """Add this micro-batch's gradients; the last one of a step sends buckets while it runs.

        Args:
            loss: `Weighted(total, weight)`; or a plain scalar tensor where `loss_reduction` was given; or None for a
                rank that has no data in this step (it may also call only `step()`, but not only `zero_grad()`).
            weight: for plain tensors, the number of samples. A "mean" without it counts as one, like every other.
            last: False before the last micro-batch of a step.
            scaler: an `ht.GradScaler` for float16: multiplies the gradients, not the loss that is reported. Step with
                `scaler.step(opt)` and `scaler.update()`.

        Raises:
            LossError: not a scalar, no gradient, a weight that is negative or not finite, or left-over gradients.
        """
        self._window.backward(self.steps_done + 1, loss, weight, last, scaler)

    def synchronize(self) -> None:
        """Finish the averaging now: until `step()`, `param.grad` holds the mean gradient, the same on all ranks.

        Raises:
            NonFiniteError: the loss is NaN or infinite on some rank; on all ranks, before anything was updated.
            LossError: the weight is 0 on every rank, or ranks mixed `opt.backward` with `loss.backward`.
            CollectiveError: the ranks' learning rates differ; on all ranks.
        """
        window = self._window
        if window.is_averaged:
            return
        reason = "a scaler divides them" if window.is_scaled else "opt.synchronize() was called"
        self.last_loss = window.average(self.steps_done + 1, reason)
        self._current.reducer.places.deliver()
        window.is_averaged = True

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Average, then clip the mean gradient's 2-norm to `max_norm` > 0; returns the norm before clipping."""
        check_limit("max_norm", max_norm)
        self.synchronize()
        return clip_norm_(self._current.reducer.params, max_norm)

    def clip_grad_value_(self, max_value: float) -> None:
        """Average, then clamp each component of the mean gradient to [-max_value, max_value]."""
        check_limit("max_value", max_value)
        self.synchronize()
        clip_value_(self._current.reducer.params, max_value)

    def step(self, closure: Optional[Callable] = None) -> None:
        """Average what was collected, clip, and let the held optimizer take one step.

        Raises:
            ConfigError: a closure is given.
            NonFiniteError, LossError: see `synchronize`.
        """
        if closure is not None:
            raise closure_refused()
        window = self._window
        if window.is_averaged:
            window.check_nothing_was_added()
        else:
            self.last_loss = window.average(self.steps_done + 1)
        self._updater.step(window.is_averaged, window.is_ours)
        self.steps_done += 1
        window.clear()
        if self._is_first_step:
            self._is_first_step = False
            self._keep_memory()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _keep_memory(self) -> None:
        params = self._current.reducer.params
        if all(param.is_cpu for param in params):
            advice = keep_freed_memory(max(param.nbytes for param in params))
            if advice:
                say(f"hint: {advice}", rank=self.comm.rank)

    def _scale_rates(self) -> None:
        if not self._scheduler_is_rebased and any(SCALE not in group for group in self.param_groups):
            check_no_scheduler(self.optimizer, self.lr_scale)
        scale_groups(self.param_groups, self.lr_scale, from_initial=self._scheduler_is_rebased)

    def _resume(self, saved: SavedState) -> None:
        self.steps_done = saved.steps_done
        if isinstance(self._rule, AdaScale) and saved.rule:
            self._rule.load_state_dict(saved.rule)
        elif self.lr_scale != saved.lr_scale:
            say(
                f"resumed: {saved.num_ranks} -> {self.comm.size} ranks; the learning rate keeps the factor "
                f"{saved.lr_scale:g} of the first start",
                rank=self.comm.rank,
            )
        self.lr_scale = saved.lr_scale
        if saved.nominal_weight is not None:
            self._window.nominal_weight = saved.nominal_weight
        if saved.reference_batch is not None:
            self.reference_batch = Fraction(saved.reference_batch)
        self._updater.keep(saved.update_by)
        # One rank alone has summed nothing: there is no way to keep.
        if self._current.keep_way(saved.reduce_through if saved.num_ranks > 1 else None):
            say(f"resumed: {self.describe_reduction()}", rank=self.comm.rank)
        self._ways.compare_nodes(vars(saved), self.comm)
