"""torch's own functions called below their wrappers, which cost as much as a small model's arithmetic: backward, and an update.

`torch.optim.X.step` collects its tensors anew in every step; here the lists are made once, and torch's functional form (for SGD
the kernel below it, where this torch has it) is called with them. Any other optimizer takes its ordinary step, without the wrappers for hooks and profiles.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd


def _engine_works() -> bool:
    """Whether torch's engine can be called as `torch.autograd.backward` calls it."""
    try:
        weight = torch.ones(2, requires_grad=True)
        total = (3 * weight).sum()
        _ENGINE.run_backward((total,), (torch.full_like(total, 0.5),), False, False, (), allow_unreachable=True, accumulate_grad=True)
        return weight.grad.tolist() == [1.5, 1.5]
    except (AttributeError, TypeError, RuntimeError):
        return False


_ENGINE: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
_engine_is_known: list[bool] = []


def run_backward(total: torch.Tensor, seed: torch.Tensor) -> None:
    """`torch.autograd.backward(total, seed)`, without the checks of its arguments where this torch allows it.

    Args:
        total: a tensor with one element that needs a gradient.
        seed: of its shape, dtype and device.
    """
    if not _engine_is_known:
        _engine_is_known.append(_engine_works())
    if _engine_is_known[0] and not torch._C._are_functorch_transforms_active():
        _ENGINE.run_backward((total,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    else:
        torch.autograd.backward(total, seed)


def make_step(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """A function that does what `optimizer.step()` would do; made when the optimizer has all of its state.

    Args:
        optimizer: over pieces on the CPU whose gradients are there and stay the same tensors.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2)); w.grad = torch.ones(2)
        >>> step = make_step(torch.optim.SGD([w], lr=0.5)); step(); w.tolist()
        [0.5, 0.5]
    """
    special = {torch.optim.SGD: _sgd_group, torch.optim.Adam: _adam_group, torch.optim.AdamW: _adam_group}.get(type(optimizer))
    groups = optimizer.param_groups
    takes = special is not None and all(_is_ordinary(group) and _has_state(optimizer, group) for group in groups)
    if takes:
        calls = [special(optimizer, group) for group in groups]
    else:
        bare = inspect.unwrap(type(optimizer).step)
        calls = [lambda: bare(optimizer)]

    def step() -> None:
        for call in calls:
            call()

    return partial(without_grad, step)


def without_grad(function: Callable[..., None], *args: Any) -> None:
    """Call it as under `torch.no_grad()`, whose class costs several times as much: some us of a small model's step."""
    was_enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        function(*args)
    finally:
        torch._C._set_grad_enabled(was_enabled)


def _is_ordinary(group: dict[str, Any]) -> bool:
    """A fixed rate in Python, nothing asked for in particular, and real numbers of 32 or 64 bits."""
    asked = any(group.get(name) for name in ("foreach", "capturable", "differentiable")) or group.get("fused") is False
    return not asked and not isinstance(group["lr"], torch.Tensor) and all(p.dtype in (torch.float32, torch.float64) for p in group["params"])


def _has_state(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    if isinstance(optimizer, torch.optim.SGD):
        return not group["momentum"] or all(optimizer.state[p].get("momentum_buffer") is not None for p in group["params"])
    return all("step" in optimizer.state[p] for p in group["params"])


def _sgd_group(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Callable[[], None]:
    kernel = getattr(torch, "_fused_sgd_", None)
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for param in group["params"]:
        by_dtype.setdefault(param.dtype, []).append(param)
    parts = [
        (params, [p.grad for p in params], [optimizer.state[p].get("momentum_buffer") for p in params]) for params in by_dtype.values()
    ]

    def call() -> None:
        options = {name: group[name] for name in ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")}
        for params, grads, buffers in parts:
            if kernel is None:
                sgd(params, grads, buffers, foreach=False, fused=True, **options)
                continue
            # What sgd() calls in the end; its way there takes several times as long as a small model's update.
            buffers = buffers if options["momentum"] else []
            kernel(params, grads, buffers, **options, is_first_step=False, grad_scale=None, found_inf=None)

    return call


def _adam_group(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Callable[[], None]:
    params = group["params"]
    grads, states = [p.grad for p in params], [optimizer.state[p] for p in params]
    averages, squares, steps = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
    largest = [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else []

    def call() -> None:
        beta1, beta2 = group["betas"]
        adam(
            params,
            grads,
            averages,
            squares,
            largest,
            steps,
            foreach=False,
            fused=True,
            amsgrad=group["amsgrad"],
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            decoupled_weight_decay=group.get("decoupled_weight_decay", type(optimizer) is torch.optim.AdamW),
        )

    return call
