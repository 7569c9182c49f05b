"""Gradient norms collected from outside of a DistributedOptimizer, by tensor hooks: the reference for what it collects itself."""

from __future__ import annotations

from functools import partial

import torch

import hvd_trainer as ht
from hvd_trainer.optim.gradient_norms import GradientNorms, NormsCollector


def watch(opt: ht.DistributedOptimizer) -> list[GradientNorms]:
    """A list that gets the norms of each step: of every micro-batch's gradient before it is accumulated, and of the average."""
    seen, collector, found = {}, NormsCollector(len(opt.param_groups), opt.comm), []
    backward, synchronize, step = opt.backward, opt.synchronize, opt.step
    scales = [1.0]

    def groups(value_of):
        return [[value_of(p) for p in group["params"]] for group in opt.param_groups]

    handles = {}

    def watched_backward(loss, *, weight=None, last=True, scaler=None):
        seen.clear()
        for param in (p for group in opt.param_groups for p in group["params"] if p.requires_grad):
            if id(param) not in handles:
                handles[id(param)] = param.register_hook(partial(_note, seen, id(param)))
        scales[0] = 1.0 if scaler is None else scaler.factor(opt.comm.device)
        undo = (opt._window.nominal_weight or 1.0) / scales[0]
        backward(loss, weight=weight, last=last, scaler=scaler)
        w = float(loss.weight)
        collector.add(groups(lambda p: seen[id(p)].double() * (undo / w) if id(p) in seen else None), w)

    def report():
        with torch.no_grad():
            scale = max(opt.comm.gather_objects(scales[0], opt.comm.unique_name("scale")))  # a rank without data has none
            found.append(collector.finish(groups(lambda p: None if p.grad is None else p.grad.double() / scale)))

    def watched_synchronize():
        if not opt._window.is_averaged:
            synchronize()
            report()

    def watched_step():
        watched_synchronize()
        step()

    opt.backward, opt.synchronize, opt.step = watched_backward, watched_synchronize, watched_step
    return found


def _note(seen, key, grad):
    seen[key] = grad.detach().clone()
