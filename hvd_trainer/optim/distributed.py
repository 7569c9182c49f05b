"""`DistributedOptimizer`: the user's optimizer, fed with the exact mean gradient over all ranks."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import ConfigError, LossError
from hvd_trainer.log import say
from hvd_trainer.optim import step_errors
from hvd_trainer.optim.adascale import AdaScale
from hvd_trainer.optim.buckets import DEFAULT_BUCKET_BYTES
from hvd_trainer.optim.choose_way import WayChooser
from hvd_trainer.optim.clip import check_limit, clip_norm_, clip_value_
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.optim.gradient_norms import NormsObserver
from hvd_trainer.optim.kernels import run_backward
from hvd_trainer.optim.loss import as_sum
from hvd_trainer.optim.norms_tap import NormsTap
from hvd_trainer.optim.param_holders import take_over
from hvd_trainer.optim.rates import REFERENCE, SCALE, forget_scale_where_changed, scale_groups
from hvd_trainer.optim.reducer import Reducer
from hvd_trainer.optim.replicas import broadcast_model, broadcast_state, broadcast_tensors
from hvd_trainer.optim.scaling import RuleLike, checked_factor, range_warning, scaling_rule
from hvd_trainer.optim.schedules import Timeline
from hvd_trainer.optim.updater import Updater
from hvd_trainer.optim.ways import Numbers
from hvd_trainer.plan import BatchPlan
from hvd_trainer.values import Weighted

NOTHING = contextlib.nullcontext()
STATE_KEY = "hvd_trainer"


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
        overlap: send buckets during the last backward of a step.
        compression: "bf16" or "fp16": what travels by messages is rounded to 16 bits, which halves it; parameters, sums and
            updates keep their width. Nothing is rounded where gradients go through shared memory.
        reduce_through: "shared" for memory that the ranks of one node share, "messages" for the engine's allreduce, or
            "auto": shared memory where all ranks are CPU ranks and the engine is mpi, else messages. On several nodes "shared"
            is shared memory inside each and messages between them; then `compression` makes "auto" take messages only.
        update_by: "tensors" for the optimizer's own step over the model's tensors, "shards" to divide it among the ranks of
            a node (with gradients in shared memory), or "auto": where the optimizer works element by element and ranks
            are on CPUs, over flat buffers, and in shards (LARS and LAMB, too) where gradients go through shared memory and the
            model is not tiny. Shards lie in memory that the ranks share: parameters must then be changed by `step()` only, which is
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
        if isinstance(optimizer, DistributedOptimizer) or not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"DistributedOptimizer({type(optimizer).__name__})",
                "a torch optimizer that is not wrapped yet",
                "ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), comm)",
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ConfigError(
                "DistributedOptimizer(LBFGS)",
                "an optimizer that takes one gradient a step",
                "LBFGS evaluates the loss again inside step(closure), on this rank alone; use SGD, AdamW, ...",
            )
        if loss_reduction not in (None, "mean", "sum"):
            raise ConfigError(f"loss_reduction={loss_reduction!r}", '"mean" or "sum"', "or return ht.Weighted from the loss")
        self.optimizer, self.comm = optimizer, comm
        self.last_loss: Optional[Weighted] = None
        self.steps_done = 0
        self._loss_reduction = loss_reduction
        self._bucket_bytes, self._overlap = bucket_bytes, overlap
        self._name = comm.unique_name("opt")
        self._updater = Updater(optimizer, comm, self._name, update_by, clip_norm, clip_value)
        self._ways = WayChooser(reduce_through, update_by != "shards", compression)
        self._is_built = False
        if model is not None:
            broadcast_model(model, comm)
            named_parameters = model.named_parameters()
        self._names = {id(param): name for name, param in named_parameters or ()}
        self._reducer: Optional[Reducer] = None
        self._norms: Optional[NormsTap] = None
        self._reduced: list[int] = []
        self._nominal_weight = _power_of_two(plan.global_batch) if plan else 1.0
        self._nominal_is_fixed = plan is not None
        self._clear_window()

        self._rule = scaling_rule(lr_scaling)
        if isinstance(self._rule, AdaScale):  # AdaScale
            self.add_norms_observer(self._rule)
            self._rule.attach(self)
        self.reference_batch = plan.reference if plan else None
        ratio = plan.batch_ratio if plan else Fraction(comm.size)
        self.lr_scale = checked_factor(self._rule, ratio * (self.reference_batch or 1), self.reference_batch or 1)
        self._scheduler_is_rebased = scheduler_is_rebased
        self._ensure_reducer()
        broadcast_state(optimizer, comm, f"{self._name}.state")
        forget_scale_where_changed(self.param_groups)
        self._scale_rates()
        broadcast_tensors([p for group in self.param_groups for p in group["params"]], comm, self._name)
        self._is_built = True
        self._updater.start(self._reducer, self._ways)
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
        raise TypeError("a DistributedOptimizer cannot be copied or pickled: save opt.state_dict(), and wrap a copy of opt.optimizer")

    def __reduce_ex__(self, protocol: Any) -> None:
        self.__deepcopy__({})

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optimizer!r}, ranks={self.comm.size}, lr_scale={self.lr_scale:g})"

    def describe_reduction(self) -> str:
        """In words, how gradients travel and who updates."""
        count = len(self._reducer.buckets)
        return f"gradients in {count} bucket{'s' if count > 1 else ''} through {self._ways.why}{self._updater.text}"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; the new group's rate is scaled like the others, its parameters made equal on all ranks."""
        self.optimizer.add_param_group(param_group)
        self._scale_rates()
        broadcast_tensors(self.param_groups[-1]["params"], self.comm, self.comm.unique_name(f"{self._name}.group"))

    def add_norms_observer(self, observer: NormsObserver) -> None:
        """Hand the squared norms of local and averaged gradients to `observer` in every step that it wants; on all ranks."""
        if self._norms is None:
            self._norms = NormsTap(self.comm, f"{self._name}.norms")
            self._bind_norms()
        self._norms.observers.append(observer)

    def register_step_pre_hook(self, hook: Callable) -> Any:
        return self.optimizer.register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Callable) -> Any:
        return self.optimizer.register_step_post_hook(hook)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; also ends the step's window, so that the weights collected so far are forgotten."""
        if self._norms is not None:
            self._norms.discard()
        if self._reducer is not None:
            self._reducer.discard()
            if not set_to_none:
                self._reducer.places.zero_grad()
        self._clear_window()
        if not set_to_none:
            self.optimizer.zero_grad(set_to_none=False)
            if self._reducer is not None:
                self._reducer.places.note_versions()
            return
        for group in self.param_groups:  # what torch's does, without its entry in a profile
            for param in group["params"]:
                param.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The held optimizer's ordinary state_dict (it loads into a plain optimizer) with one more key of ours."""
        ours = {
            "steps_done": self.steps_done,
            "lr_scale": self.lr_scale,
            "nominal_weight": self._nominal_weight if self._nominal_is_fixed else None,
            "reference_batch": None if self.reference_batch is None else str(self.reference_batch),
            "num_ranks": self.comm.size,
            "reduce_through": self._ways.taken,
            "node_sizes": self._ways.node_sizes,
            "rule": self._rule.state_dict() if isinstance(self._rule, AdaScale) else None,
        }
        return {**self.optimizer.state_dict(), STATE_KEY: ours}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict of this class or of a plain optimizer; schedulers stay attached.

        Rates that were scaled when they were saved keep that scale (the recipe of the first start, whatever the number
        of ranks now); rates from a plain optimizer are scaled as at wrapping.
        """
        ours = state_dict.get(STATE_KEY)
        self._updater.forget_guard()
        self.optimizer.load_state_dict({key: value for key, value in state_dict.items() if key != STATE_KEY})
        if ours is not None:
            self.steps_done = ours["steps_done"]
            if isinstance(self._rule, AdaScale) and ours.get("rule"):
                self._rule.load_state_dict(ours["rule"])
            elif self.lr_scale != ours["lr_scale"]:
                say(
                    f"resumed: {ours['num_ranks']} -> {self.comm.size} ranks; the learning rate keeps the factor "
                    f"{ours['lr_scale']:g} of the first start",
                    rank=self.comm.rank,
                )
            self.lr_scale = ours["lr_scale"]
            if ours["nominal_weight"] is not None:
                self._nominal_weight, self._nominal_is_fixed = ours["nominal_weight"], True
            if ours["reference_batch"] is not None:
                self.reference_batch = Fraction(ours["reference_batch"])
            self._keep_way(ours.get("reduce_through", self._ways.taken))
            self._ways.compare_nodes(ours, self.comm)
        scale_groups(self.param_groups, self.lr_scale)

    def release(self) -> None:
        """Give parameters and state back to each rank alone, as before the first step; the next step takes them again.

        For what all ranks do with the model between two runs or after the last: while the update is made in shards,
        parameters lie in memory that the ranks of the node share.
        """
        if self._updater.flat is not None:
            self._updater.give_back()
            self._reduced = []

    def _keep_way(self, saved: str) -> None:
        """Sum as before the checkpoint was saved, where nothing else was asked for: other sums round differently."""
        if self._ways.wanted == "auto" and saved != self._ways.taken and (saved == "messages" or not self._ways.obstacle(self.comm)):
            self._ways.wanted = saved
            self._reduced = []  # the next step makes a new reducer

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
                rank that has no data in this step.
            weight: for plain tensors, the number of samples. A "mean" without it counts as one, like every other.
            last: False before the last micro-batch of a step.
            scaler: an `ht.GradScaler` for float16: multiplies the gradients, not the loss that is reported. Step with
                `scaler.step(opt)` and `scaler.update()`.

        Raises:
            LossError: not a scalar, no gradient, a weight that is negative or not finite, or left-over gradients.
        """
        reducer = self._ensure_reducer()
        self.comm.where = f"step {self.steps_done + 1}"
        if not self._in_window and not reducer.begin_window():
            raise LossError(
                f"gradients are left over when step {self.steps_done + 1} begins",
                "none: they would be added to this step's",
                "call opt.zero_grad() after opt.step()",
            )
        if self._synchronized:
            raise LossError(
                f"opt.backward after opt.synchronize (or clipping) in step {self.steps_done + 1}",
                "all backwards of a step before its gradients are averaged",
                "pass last=False before the last micro-batch, clip after it",
            )
        self._in_window = True
        is_last = last and self._overlap and not self.comm.talks_in_backward
        if loss is None:
            if is_last:
                reducer.arm(self._weight, self._nominal_weight)
            return
        total, seed, local_weight = as_sum(loss, weight, self._loss_reduction)
        self._scaled = self._scaled or scaler is not None
        factor = 1.0 if scaler is None else scaler.factor(self.comm.device)
        reducer.begin(is_last, self._weight + local_weight, self._nominal_weight)
        self.comm.backward_of = self._name
        try:
            with self._norms.watching(self.steps_done + 1, local_weight, self._nominal_weight, factor) if self._norms else NOTHING:
                # A new one each time: a gradient may come to lie in its memory (of `scale.squeeze() + ...`), and is added to later.
                run_backward(total, torch.full_like(total, seed * factor / self._nominal_weight, requires_grad=False))
        finally:
            reducer.end()
            self.comm.backward_of = ""
        self._weight += local_weight
        if not seed:  # the mean over no sample is NaN, and counts nothing
            return
        if total.is_cpu:
            self._total += total.item() * seed
        else:  # stays a tensor until the step ends: reading it here would make a GPU wait for every micro-batch
            self._total = self._total + total.detach().double().sum() * seed

    def synchronize(self) -> None:
        """Finish the averaging now: until `step()`, `param.grad` holds the mean gradient, the same on all ranks.

        Raises:
            NonFiniteError: the loss is NaN or infinite on some rank; on all ranks, before anything was updated.
            LossError: the weight is 0 on every rank, or ranks mixed `opt.backward` with `loss.backward`.
        """
        if self._synchronized:
            return
        self._average("opt.synchronize() was called" if not self._scaled else "a scaler divides them")
        self._reducer.places.deliver()
        self._synchronized = True

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Average, then clip the mean gradient's 2-norm to `max_norm` > 0; returns the norm before clipping."""
        check_limit("max_norm", max_norm)
        self.synchronize()
        return clip_norm_(self._reducer.params, max_norm)

    def clip_grad_value_(self, max_value: float) -> None:
        """Average, then clamp each component of the mean gradient to [-max_value, max_value]."""
        check_limit("max_value", max_value)
        self.synchronize()
        clip_value_(self._reducer.params, max_value)

    def step(self, closure: Optional[Callable] = None) -> None:
        """Average what was collected, clip, and let the held optimizer take one step.

        Raises:
            ConfigError: a closure is given.
            NonFiniteError, LossError: see `synchronize`.
        """
        if closure is not None:
            raise ConfigError(
                "step(closure)",
                "step() without a closure",
                "a closure evaluates the loss again inside the step, after the averaging: call opt.backward(...) and then "
                "opt.step(); optimizers that need closures (LBFGS) are not supported",
            )
        if not self._synchronized:
            self._average()
        elif self._reducer.foreign:
            raise LossError(
                f"a backward after the gradients of {self.comm.where} were averaged added gradients of this rank alone",
                "no backward between opt.synchronize (or clipping) and opt.step()",
                "call all backwards of a step first",
            )
        self._updater.step(self._synchronized, self._in_window)
        self.steps_done += 1
        self._clear_window()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _average(self, wants_whole: str = "") -> None:
        """Sum over all ranks and divide; raises on all ranks where there is no mean.

        Args:
            wants_whole: why this rank must see the whole gradient before the update; "" where it need not.
        """
        reducer = self._reducer if self._in_window else self._ensure_reducer(begins=False)
        self.comm.where = f"step {self.steps_done + 1}"
        plain = reducer.foreign if self._in_window else any(param.grad is not None for param in reducer.params)
        if not self._in_window and reducer.holds_gradients_of_another():
            raise LossError(
                f"at {self.comm.where} the gradients of this optimizer come from another DistributedOptimizer's backward: they "
                "have that one's scale and no weight here",
                "one optimizer for each loss",
                "put both sets of parameters into one optimizer as two param groups; or zero_grad() and call backward on this one",
            )
        if self._weight and not reducer.holds_anything():
            raise LossError(
                f"at {self.comm.where} opt.backward was called, but no parameter has a gradient",
                "gradients that stay until opt.step()",
                "call opt.zero_grad() or model.zero_grad() only after opt.step()",
            )
        self._total = float(self._total)
        wants_whole, aside, changed = self._updater.look(wants_whole)
        numbers = Numbers(self._total, float(self._in_window), 0.0, aside, float(changed))
        sums = reducer.flush(numbers, self._weight + plain, float(plain), self._nominal_weight)
        step_errors.check_sums(sums, self._total, reducer, self.comm, self._name, self._scaled)
        self.last_loss = None if sums.plain else Weighted(sums.total, sums.weight)
        if self._norms is not None:
            self._norms.report(self.steps_done + 1, reducer)
        if sums.ours and not self._nominal_is_fixed:
            # The first step went out unscaled; from now on gradients have ordinary magnitudes on their way.
            self._nominal_weight, self._nominal_is_fixed = _power_of_two(sums.weight), True
        self._updater.settle(sums, wants_whole)

    def _clear_window(self) -> None:
        self._in_window = False
        self._synchronized = False
        self._scaled = False  # by a scaler, which looks for overflow itself
        self._weight = 0.0
        self._total: Union[float, torch.Tensor] = 0.0

    def _ensure_reducer(self, begins: bool = True) -> Reducer:
        """The reducer for the parameters that are trainable now: made again when some were frozen, unfrozen or added.

        Where the step does not begin here, those frozen since it began stay in: they have gradients, and torch uses them.
        """
        now = [id(p) for group in self.param_groups for p in group["params"] if p.requires_grad]
        if self._reducer is not None and (now == self._reduced or (not begins and set(now) < set(self._reduced))):
            return self._reducer
        if not now:
            raise ConfigError("the optimizer holds no trainable parameter", "at least one with requires_grad=True", "pass model.parameters(), or unfreeze something")
        if self._reducer is not None:
            self._unhook()
        params = [(p, number) for number, group in enumerate(self.param_groups) for p in group["params"] if p.requires_grad]
        named = [(self._names.get(id(p), f"param{place}"), p) for place, (p, _) in enumerate(params)]
        name, groups = self.comm.unique_name(f"{self._name}.plan"), [number for _, number in params]
        self._updater.give_back()
        for param, _ in params:
            take_over(param)
        self._reducer = Reducer(named, self.comm, self._bucket_bytes, name, groups, self._ways.open)
        # Python's garbage collection does not see that a parameter leads to its hooks: these would live for ever.
        self._unhook = weakref.finalize(self, self._reducer.detach)
        self._unhook.atexit = False
        self._reduced = now
        self._bind_norms()
        if self._is_built:
            self._updater.start(self._reducer, self._ways)
        return self._reducer

    def _bind_norms(self) -> None:
        if self._norms is not None and self._reducer is not None:
            groups = [spec.group for spec in self._reducer.specs]
            self._norms.bind(self._reducer.params, groups, len(self.param_groups))

    def _scale_rates(self) -> None:
        unscaled = any(SCALE not in group for group in self.param_groups)
        early = unscaled and self.lr_scale != 1 and not self._scheduler_is_rebased
        if early and hasattr(self.optimizer.step, "_wrapped_by_lr_sched"):
            raise ConfigError(
                "a learning-rate scheduler was made on this optimizer before it was wrapped; it would undo the scaling",
                f"a scheduler made on the wrapped optimizer, whose rate is already multiplied by {self.lr_scale:g}",
                "wrap first: opt = ht.DistributedOptimizer(...), then StepLR(opt, ...); or give it to ht.Trainer(schedule=...)",
            )
        scale_groups(self.param_groups, self.lr_scale, from_initial=self._scheduler_is_rebased)


def _power_of_two(weight: float) -> float:
    """The power of two next to `weight`: multiplying by it is exact, so the choice does not change a result."""
    return 2.0 ** round(math.log2(weight)) if weight > 0 else 1.0
