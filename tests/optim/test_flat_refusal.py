"""What an update in flat buffers is refused for, in words."""

import pytest
import torch

from hvd_trainer.optim.flat_refusal import refusal, refusal_while_running


def with_hook(optimizer):
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def with_own_step(optimizer):
    optimizer.step = lambda: None
    return optimizer


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda w: torch.optim.SGD([w], lr=0.1), ""),
        (lambda w: torch.optim.ASGD([w]), "ASGD is not known to work element by element"),
        (lambda w: torch.optim.Adam([w], capturable=True), "Adam with differentiable or capturable"),
        (lambda w: with_hook(torch.optim.SGD([w], lr=0.1)), "a step hook must see whole gradients"),
        (lambda w: with_own_step(torch.optim.SGD([w], lr=0.1)), "SGD.step was replaced"),
    ],
)
def test_optimizers(make, words):
    w = torch.nn.Parameter(torch.zeros(4))
    assert refusal(make(w), [w]) == words


@pytest.mark.parametrize("values", [torch.zeros(2, dtype=torch.complex64), torch.zeros(4)[::2]], ids=["complex", "holes"])
def test_parameters(values):
    w = torch.nn.Parameter(values)
    assert refusal(torch.optim.SGD([w], lr=0.1), [w]) == "a parameter is complex or has holes in memory"


def test_a_scheduler_replaces_step_and_changes_nothing():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert "step" in vars(optimizer) and refusal_while_running(optimizer) == ""
