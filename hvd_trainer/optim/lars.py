"""`LARS`: momentum SGD whose rate is scaled, layer by layer, to the size of the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Union

import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.trust_ratio import LayerwiseOptimizer, guarded


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling, exactly as published.

        ratio = eta |w| / (|g| + wd |w| + eps)          1 where |w| = 0 or |g| = 0
        v = momentum v + lr ratio (g + wd w)            (form="torch": v = momentum v + ratio (g + wd w); w -= lr v)
        w = w - v

    Biases and norms (tensors of one dimension; see `adapt`) have neither ratio nor weight decay: plain momentum SGD with
    the raw rate, which is large. The two forms are the same while the rate is constant, and part company in a warm-up.

    Meant for batches that plain momentum SGD no longer follows; with a well-tuned rate Nesterov momentum reaches about
    the same at 32,768 (Nado et al. 2021, arXiv 2102.06356), so compare before you switch.

    Args:
        params: as for any torch optimizer; with groups, `adapt` and every other option can differ.
        lr: >= 0; for LARS well above that of SGD, since ratio is about eta.
        momentum: 0 .. 1; 0 keeps no state.
        weight_decay: wd, >= 0; 0 leaves the ratio on.
        eta: the trust coefficient, > 0.
        eps: added below, >= 0; the paper has none, and the guard for zero norms does not need it.
        adapt: "auto", True or False, which tensors have a ratio and weight decay.
        form: "paper" (the rate is in the buffer), or "torch" (it is not, as in torch.optim.SGD, apex and timm).
        clip: never above the global rate: ratio = min(ratio / lr, 1), called LARC.

    Raises:
        ConfigError: an option is out of range.

    Example:
        >>> w = torch.nn.Parameter(torch.full((1, 4), 1.0))                 # |w| = 2
        >>> opt = LARS([w], lr=1.0, momentum=0.0, weight_decay=0.0, eta=0.1)
        >>> w.grad = torch.full((1, 4), 5.0); opt.step()                    # |g| = 10: the step is 0.1 |w| long
        >>> [round(x, 4) for x in w.tolist()[0]]
        [0.9, 0.9, 0.9, 0.9]

    Source: You, Gitman, Ginsburg 2017, arXiv 1708.03888, algorithm 1; LARC: apex, with eta = 0.02.
    """

    limits = {
        **LayerwiseOptimizer.limits,
        "momentum": (lambda value: 0 <= value < 1, "a number from 0 to below 1"),
        "eta": (lambda value: value > 0, "a number > 0"),
    }

    def __init__(
        self,
        params: Any,
        lr: Union[float, torch.Tensor],
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        *,
        eta: float = 0.001,
        eps: float = 0.0,
        adapt: Union[str, bool] = "auto",
        form: str = "paper",
        clip: bool = False,
    ) -> None:
        if form not in ("paper", "torch"):
            raise ConfigError(f"LARS(form={form!r})", '"paper" or "torch"', 'form="paper": the rate is inside the momentum buffer')
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta, "eps": eps, "adapt": adapt, "form": form, "clip": clip}
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
        updates = self._updates(group, params, grads, adapts)
        lr, in_buffer = group["lr"], group["form"] == "paper"
        if in_buffer:
            updates = torch._foreach_mul(updates, lr)
        if group["momentum"]:
            velocities = [self._buffer(param) for param in params]
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, updates)
            updates = velocities
        torch._foreach_sub_(params, updates if in_buffer else torch._foreach_mul(updates, lr))

    def _updates(
        self, group: dict[str, Any], params: list[torch.Tensor], grads: list[torch.Tensor], adapts: list[bool]
    ) -> list[torch.Tensor]:
        """ratio (g + wd w) where a tensor adapts, else its gradient."""
        layers = [index for index, flag in enumerate(adapts) if flag]
        updates = list(grads)
        if layers:
            weights, steep = [params[index] for index in layers], [grads[index] for index in layers]
            found = torch._foreach_add(steep, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(found, list(self._ratios(group, weights, steep).to(weights[0]).unbind()))
            for index, update in zip(layers, found):
                updates[index] = update
        return updates

    def _buffer(self, param: torch.Tensor) -> torch.Tensor:
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param)
        return state["momentum_buffer"]

    def _ratios(self, group: dict[str, Any], weights: list[torch.Tensor], grads: list[torch.Tensor]) -> torch.Tensor:
        weight_norms, grad_norms = self._norms(weights, grads)
        ratio = group["eta"] * weight_norms / (grad_norms + group["weight_decay"] * weight_norms + group["eps"])
        defined = (weight_norms > 0) & (grad_norms > 0)
        if group["clip"]:
            ratio = (ratio / group["lr"]).clamp(max=1.0)
        return guarded(ratio, defined, weights[0])
