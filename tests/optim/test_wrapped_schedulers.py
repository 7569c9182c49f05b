"""torch schedulers on a wrapped optimizer, in a loop of the user's own."""

import pytest
import torch
from torch.optim import lr_scheduler

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads

KINDS = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4], 0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=10),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 1 / (1 + n)),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[3]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
}


def make(comm, kind, lr=0.1):
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = DistributedOptimizer(torch.optim.SGD([p], lr=lr, momentum=0.9), comm)
    return p, opt, KINDS[kind](opt)


def take(p, opt, scheduler, steps):
    rates = []
    for _ in range(steps):
        opt.zero_grad()
        opt.backward(Weighted(p.square().sum(), 1))
        opt.step()
        rates.append(opt.param_groups[0]["lr"])
        scheduler.step(*[1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else [])
    return rates


def expected(kind, lr):
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    plain = torch.optim.SGD([p], lr=lr, momentum=0.9)
    scheduler, rates = KINDS[kind](plain), []
    for _ in range(8):
        p.grad = torch.ones_like(p)
        plain.step()
        rates.append(plain.param_groups[0]["lr"])
        scheduler.step(*[1.0] if kind == "ReduceLROnPlateau" else [])
    return rates


@pytest.mark.parametrize("kind", KINDS)
def test_made_after_wrapping(kind):
    """It starts from the scaled rate, is not disturbed by load_state_dict, and goes on in a new process."""

    def rank_main(comm):
        p, opt, scheduler = make(comm, kind)
        rates = take(p, opt, scheduler, 3)
        opt.load_state_dict(opt.state_dict())  # replaces the groups' dicts: whoever kept the old ones is lost
        scheduler.load_state_dict(scheduler.state_dict())
        rates += take(p, opt, scheduler, 2)
        q, again, rescheduler = make(comm, kind)
        q.data.copy_(p.data)
        again.load_state_dict(opt.state_dict())
        rescheduler.load_state_dict(scheduler.state_dict())
        rates += take(q, again, rescheduler, 3)
        return rates

    found = run_threads(2, rank_main)
    assert found[0] == found[1] == pytest.approx(expected(kind, 0.2), rel=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ReduceLROnPlateau"])
def test_made_before_wrapping(kind):
    """It would set its own, unscaled rates. On one rank nothing is scaled, so there is nothing to refuse."""

    def rank_main(comm):
        plain = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
        KINDS[kind](plain)
        if comm.size == 1:
            return DistributedOptimizer(plain, comm)
        with pytest.raises(ConfigError, match="before it was wrapped"):
            DistributedOptimizer(plain, comm)

    run_threads(2, rank_main)
    run_threads(1, rank_main)
