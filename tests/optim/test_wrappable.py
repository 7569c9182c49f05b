"""What cannot be wrapped, and what cannot be done with what is."""

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.wrappable import check_no_scheduler, check_wrappable


def make():
    w = torch.nn.Parameter(torch.ones(1))
    return w, torch.optim.SGD([w], lr=0.1)


def wrapped():
    return DistributedOptimizer(make()[1], SingleCommunicator())


@pytest.mark.parametrize(
    ("given", "words"),
    [(wrapped, "not wrapped yet"), (lambda: [make()[0]], "list"), (lambda: torch.optim.LBFGS([make()[0]]), "LBFGS")],
)
def test_what_cannot_be_wrapped(given, words):
    with pytest.raises(ConfigError, match=words):
        DistributedOptimizer(given(), SingleCommunicator())


@pytest.mark.parametrize("rate", [{}, {"lr": None}, {"lr": "0.1"}], ids=str)
def test_an_optimizer_without_a_rate_is_told_so(rate):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    del optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0].update(rate)
    with pytest.raises(ConfigError, match=r"SGD has lr=.* in param group 0(.|\n)*lr_scaling"):
        check_wrappable(optimizer, DistributedOptimizer)


def test_a_torch_optimizer_can():
    check_wrappable(make()[1], DistributedOptimizer)


def test_a_scheduler_made_before_is_in_the_way_of_a_factor():
    _, optimizer = make()
    check_no_scheduler(optimizer, 2.0)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    check_no_scheduler(optimizer, 1.0)
    with pytest.raises(ConfigError, match=r"multiplied by 2(.|\n)*wrap first"):
        check_no_scheduler(optimizer, 2.0)


def test_closure():
    with pytest.raises(ConfigError, match="closure"):
        wrapped().step(lambda: 1.0)
