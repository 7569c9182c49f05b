"""`LAMB`: AdamW whose update is scaled, layer by layer, to the size of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional, Union

import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.trust_ratio import LayerwiseOptimizer, guarded


class LAMB(LayerwiseOptimizer):
    """Layer-wise adaptive moments, exactly as published.

        m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
        u = r + wd w
        w = w - lr phi(|w|) / |u| u                     ratio 1 where |w| = 0 or |u| = 0

    phi(x) is x between two bounds (`phi`). Biases and norms (tensors of one dimension; see `adapt`) have neither ratio
    nor weight decay: there it is Adam. The usual rate follows the square root of the batch.

    Meant for batches where AdamW no longer gains; tuned as carefully, AdamW reaches the same at 32,768 (Nado et al. 2021,
    arXiv 2102.06356), so compare before you switch.

    Args:
        params: as for any torch optimizer; with groups, `adapt` and every other option can differ.
        lr: >= 0.
        betas: b1, b2, each 0 .. 1.
        eps: >= 0, outside the square root.
        weight_decay: wd, >= 0; added to the update, not to the gradient.
        adapt: "auto", True or False, which tensors have a ratio and weight decay.
        phi: lower and upper bound of phi; (0, inf) is the identity, which the authors used.
        bias_correction: False leaves out 1 - b^t, which the paper allows; the first steps are then smaller.

    Raises:
        ConfigError: an option is out of range.

    Example:
        >>> w = torch.nn.Parameter(torch.full((1, 4), 1.0))                 # |w| = 2
        >>> opt = LAMB([w], lr=0.1, weight_decay=0.0)
        >>> w.grad = torch.full((1, 4), 5.0); opt.step()                    # the step is lr |w| long, whatever |g| is
        >>> [round(x, 4) for x in w.tolist()[0]]
        [0.9, 0.9, 0.9, 0.9]

    Source: You et al. 2019, arXiv 1904.00962, algorithm 2.
    """

    limits = {
        **LayerwiseOptimizer.limits,
        "betas": (lambda value: 0 <= value < 1, "two numbers from 0 to below 1"),
        "phi": (lambda value: value >= 0, "two bounds >= 0, the lower first"),
    }

    def __init__(
        self,
        params: Any,
        lr: Union[float, torch.Tensor] = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        *,
        adapt: Union[str, bool] = "auto",
        phi: tuple[float, float] = (0.0, math.inf),
        bias_correction: bool = True,
    ) -> None:
        if len(phi) != 2 or not phi[0] <= phi[1]:
            raise ConfigError(f"LAMB(phi={phi!r})", "two bounds, the lower first", "phi=(0.0, 10.0)")
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "adapt": adapt, "phi": phi,
            "bias_correction": bias_correction,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One update from the gradients that are there; `closure` as in torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: dict[str, Any]) -> None:
        params, grads, adapts = self._with_gradients(group)
        if not params:
            return
        updates = self._adam(group, params, grads)
        layers = [index for index, flag in enumerate(adapts) if flag]
        if layers:
            weights, found = [params[index] for index in layers], [updates[index] for index in layers]
            torch._foreach_add_(found, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(found, list(self._ratios(group, weights, found).to(weights[0]).unbind()))
        torch._foreach_sub_(params, torch._foreach_mul(updates, group["lr"]))

    def _adam(self, group: dict[str, Any], params: list[torch.Tensor], grads: list[torch.Tensor]) -> list[torch.Tensor]:
        """Adam's update r, as new tensors."""
        states = [self._moments(param) for param in params]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        beta1, beta2 = group["betas"]
        torch._foreach_lerp_(means, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        steps = [float(state["step"]) for state in states]
        correct = group["bias_correction"]
        updates = torch._foreach_div(means, [1 - beta1**step if correct else 1.0 for step in steps])
        divisors = torch._foreach_div(squares, [1 - beta2**step if correct else 1.0 for step in steps])
        torch._foreach_sqrt_(divisors)
        torch._foreach_add_(divisors, group["eps"])
        torch._foreach_div_(updates, divisors)
        return list(updates)

    def _moments(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.state[param]
        if not state:
            # A tensor, as in torch.optim.Adam; on the CPU, where reading it does not wait for a device.
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(param)
            state["exp_avg_sq"] = torch.zeros_like(param)
        state["step"] += 1
        return state

    def _ratios(self, group: dict[str, Any], weights: list[torch.Tensor], updates: list[torch.Tensor]) -> torch.Tensor:
        weight_norms, update_norms = self._norms(weights, updates)
        ratio = weight_norms.clamp(*group["phi"]) / update_norms
        return guarded(ratio, (weight_norms > 0) & (update_norms > 0), weights[0])
