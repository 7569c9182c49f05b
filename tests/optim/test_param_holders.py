"""Who holds a parameter's memory gives it back when another takes or writes it, and only then."""

import pytest
import torch

from hvd_trainer.optim.param_holders import hold, let_go, take_over, unshare


class Holder:
    """Counts how often it was asked."""

    def __init__(self, shared):
        self.shared, self.asked = shared, 0

    def give_back(self):
        self.asked += 1


@pytest.mark.parametrize("shared", [True, False])
def test_who_is_asked(shared):
    held, free = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    holder = Holder(shared)
    hold([held], holder)
    take_over(free)
    unshare([free])
    assert holder.asked == 0
    unshare([free, held])
    assert holder.asked == int(shared)  # memory of this rank alone may be written
    take_over(held)
    assert holder.asked == int(shared) + 1


def test_only_the_one_who_holds_it_lets_go():
    param = torch.nn.Parameter(torch.zeros(1))
    first, second = Holder(True), Holder(True)
    hold([param], first)
    hold([param], second)
    let_go(param, first)
    take_over(param)
    assert (first.asked, second.asked) == (0, 1)
    let_go(param, second)
    take_over(param)
    assert second.asked == 1


def test_a_holder_that_is_gone_is_not_asked():
    param = torch.nn.Parameter(torch.zeros(1))
    hold([param], Holder(True))
    unshare([param])
