"""What is saved of ours comes back, from older and newer checkpoints, too."""

import copy
from dataclasses import replace

import pytest
import torch

from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.saved_state import STATE_KEY, SavedState, split
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads

THEIRS = {"state": {0: {"step": 1}}, "param_groups": []}
SAVED = SavedState(3, 2.0, 64.0, "32", 2, "shared", [2], {"gain": 1.5}, "tensors")


def test_there_and_back():
    together = SAVED.beside(THEIRS)
    assert together[STATE_KEY]["lr_scale"] == 2.0  # plain values: torch.load(weights_only=True) reads them
    assert split(together) == (THEIRS, SAVED)
    assert STATE_KEY not in THEIRS


def test_of_a_plain_optimizer():
    assert split(THEIRS) == (THEIRS, None)


@pytest.mark.parametrize("missing", ["reduce_through", "node_sizes", "rule", "update_by"])
def test_an_older_checkpoint_lacks_what_came_later(missing):
    together = SAVED.beside(THEIRS)
    del together[STATE_KEY][missing]
    _, saved = split(together)
    assert getattr(saved, missing) is None and saved.steps_done == 3


def test_a_newer_checkpoint_may_hold_more():
    together = SAVED.beside(THEIRS)
    together[STATE_KEY]["added_later"] = 1
    assert split(together) == (THEIRS, SAVED)


def steps(opt, a, b, comm, first, last):
    """b has no gradient in step 2, which ends an update in shares or flat buffers."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(10 * step + comm.rank)
        x, y = (torch.randn(len(a), generator=generator) for _ in "ab")
        opt.zero_grad()
        opt.backward(Weighted((a * x).sum() + (0 if step == 2 else (b * b * y).sum()), 1))
        opt.step()


@pytest.mark.parametrize("make", [lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), lambda params: torch.optim.Adam(params)], ids=["sgd", "adam"])
@pytest.mark.parametrize("way", ["shared", "messages"])
@pytest.mark.parametrize("size", [3000, 300_000])  # together on each rank, and in shards
def test_a_resume_updates_as_before_where_the_update_had_stepped_aside(size, way, make):
    def rank_main(comm):
        def begin(**options):
            params = [torch.nn.Parameter(torch.full((size,), value)) for value in (0.3, 0.7)]
            return (*params, DistributedOptimizer(make(params), comm, lr_scaling="none", **options))

        a, b, opt = begin(reduce_through=way)
        steps(opt, a, b, comm, 0, 5)
        saved = copy.deepcopy(opt.state_dict()), a.detach().clone(), b.detach().clone()
        steps(opt, a, b, comm, 5, 12)
        c, d, other = begin()
        other.load_state_dict(saved[0])
        for param, before in ((c, saved[1]), (d, saved[2])):
            param.data.copy_(before)
        steps(other, c, d, comm, 5, 12)
        return torch.equal(a, c) and torch.equal(b, d), other.describe_reduction()

    for is_equal, text in run_threads(2, rank_main):
        assert is_equal and "each rank updates all parameters" in text
        assert ("messages" in text) == (way == "messages"), text


def test_a_loaded_way_is_named_at_once(capsys):
    def rank_main(comm):
        def begin(**options):
            return DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(9))], lr=0.1), comm, lr_scaling="none", **options)

        saved = begin(reduce_through="shared").state_dict()
        opt = begin()
        before = opt.describe_reduction()
        opt.load_state_dict(saved)
        return before, opt.describe_reduction()

    for before, after in run_threads(2, rank_main):
        assert "through messages" in before and "through shared memory" in after
    assert "resumed: gradients in 1 bucket through shared memory" in capsys.readouterr().out


def test_messages_of_a_checkpoint_have_a_reason_of_their_own(monkeypatch):
    monkeypatch.setattr("hvd_trainer.optim.choose_way.AUTO_ENGINES", {"threads"})

    def rank_main(comm, ranks_before):
        opt = DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(9))], lr=0.1), comm, lr_scaling="none")
        theirs, ours = split(opt.state_dict())
        opt.load_state_dict(replace(ours, reduce_through="messages", num_ranks=ranks_before).beside(theirs))
        return opt.describe_reduction()

    assert all("messages (as before the checkpoint was saved)" in text for text in run_threads(2, lambda comm: rank_main(comm, 3)))
    assert all("shared memory" in text for text in run_threads(2, lambda comm: rank_main(comm, 1)))  # one rank had no choice
