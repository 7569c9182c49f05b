"""A gradient that somebody else may still look at is not taken."""

import pytest
import torch

from hvd_trainer.optim.sole_owner import is_alone, references, references_of_a_lonely_one


def references_seen(*, is_kept):
    """What a hook at the end of backward sees, and whether the gradient's memory is alone."""
    w, kept, found = torch.nn.Parameter(torch.ones(8)), [], []
    if is_kept:
        w.register_post_accumulate_grad_hook(lambda param: kept.append(param.grad))
    w.register_post_accumulate_grad_hook(lambda param: found.append((references(param), is_alone(param.grad))))
    w.mul(2).sum().backward()
    return found[0]


def test_a_gradient_that_nobody_keeps():
    assert references_seen(is_kept=False) == (references_of_a_lonely_one(), True)


def test_a_gradient_that_a_hook_keeps():
    count, _ = references_seen(is_kept=True)
    assert count > references_of_a_lonely_one()


@pytest.mark.parametrize(
    "shared",
    [
        lambda whole: (whole[1:], whole),  # a part of something
        lambda whole: (whole, whole.detach()),  # another tensor of the same memory
        lambda whole: (whole.requires_grad_(), None),  # a part of a graph
        lambda whole: (whole.expand(2, 8), None),  # elements that lie in one place
    ],
    ids=["part", "detached", "graph", "expanded"],
)
def test_memory_that_somebody_else_may_hold(shared):
    grad, _other = shared(torch.zeros(8))
    assert not is_alone(grad)


def test_memory_of_one_tensor():
    assert is_alone(torch.zeros(8)) and is_alone(torch.zeros(2, 3).t().contiguous())
