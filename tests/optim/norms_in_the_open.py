"""Gradient norms collected from outside of a DistributedOptimizer, by tensor hooks: the reference for what it collects itself."""

from __future__ import annotations

from functools import partial

import torch

import hvd_trainer as ht
from hvd_trainer.optim.gradient_norms import NormsCollector


def add_norms_observer(opt: ht.DistributedOptimizer, observer) -> None:
    """Every micro-batch's gradient as it comes, before it is accumulated; norms when the step has averaged."""
    if not hasattr(opt, "norms_observers"):
        opt.norms_observers = []
        _watch(opt)
    opt.norms_observers.append(observer)


def _note(seen, key, grad):
    seen[key] = grad.detach().clone()


def _watch(opt):
    seen, collector = {}, NormsCollector(len(opt.param_groups), opt.comm)
    params = [[p for p in group["params"] if p.requires_grad] for group in opt.param_groups]
    for param in (p for group in params for p in group):
        param.register_hook(partial(_note, seen, id(param)))
    backward, step = opt.backward, opt.step

    def watched_backward(loss, *, weight=None, last=True, scaler=None):
        seen.clear()
        undo = opt._nominal_weight / (1.0 if scaler is None else scaler.factor(opt.comm.device))
        backward(loss, weight=weight, last=last, scaler=scaler)
        if loss is not None:
            w = float(loss.weight if isinstance(loss, ht.Weighted) else weight)
            collector.add([[seen[id(p)].double() * (undo / w) if id(p) in seen else None for p in group] for group in params], w)

    def watched_step():
        opt.synchronize()
        with torch.no_grad():
            norms = collector.finish([[p.grad for p in group] for group in params])
        wanted = [observer for observer in opt.norms_observers if observer.wants_norms(opt.steps_done + 1)]
        for observer in wanted:
            observer.observe(norms)
        step()

    opt.backward, opt.step = watched_backward, watched_step
