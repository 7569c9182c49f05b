"""Loss scaling for float16 whose decision to skip a step is the same on all ranks."""

from __future__ import annotations

from typing import Any

import torch


class GradScaler(torch.amp.GradScaler):
    """torch's scaler, which looks at the gradients after they were averaged.

    torch's own looks at each rank's gradients: a rank with an overflow skips the step, the others take it, and the
    replicas part. The averaged gradient holds the overflow on every rank, so all skip, and all halve the scale. Arguments as `torch.amp.GradScaler`.

    Example:
        >>> import hvd_trainer as ht
        >>> w = torch.nn.Parameter(torch.ones(1))
        >>> opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), ht.init(engine="single"))
        >>> scaler = ht.GradScaler("cpu")
        >>> opt.backward(ht.Weighted((w * 3).sum(), 1), scaler=scaler)
        >>> scaler.step(opt); scaler.update(); opt.zero_grad()
        >>> round(w.item(), 4)
        0.7

    Source: Micikevicius et al. 2018, arXiv 1710.03740, section 3.2.
    """

    def factor(self, device: torch.device) -> float:
        """What gradients are multiplied by now."""
        return float(self.scale(torch.ones((), device=device)))  # `scale` also makes the scaler's state on first use

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """As torch's; also on a rank that had no data yet, whose scale was never asked for."""
        self.factor(optimizer.comm.device)
        return super().step(optimizer, *args, **kwargs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the gradients over the ranks, then divide the scale out, in place."""
        self.factor(optimizer.comm.device)
        optimizer.synchronize()
        super().unscale_(optimizer)
