"""LARS and LAMB in shards: each rank updates parts of tensors, with the ratios of whole ones."""

import copy

import pytest
import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.lamb import LAMB
from hvd_trainer.optim.lars import LARS
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads, same_bits
from tests.optim.test_flat_update import SHARDS, loss_of, reference, train, wrap

EXACT = {"rtol": 1e-12, "atol": 1e-14}
OPTIMIZERS = {
    "lars": lambda groups: LARS(groups, lr=1.0, eta=0.05),
    "lars_torch_larc": lambda groups: LARS(groups, lr=0.1, eta=0.02, form="torch", clip=True, momentum=0.5),
    "lars_no_momentum": lambda groups: LARS(groups, lr=1.0, eta=0.05, momentum=0.0),
    "lamb": lambda groups: LAMB(groups, lr=0.02),
    "lamb_bounded": lambda groups: LAMB(groups, lr=0.02, phi=(0.5, 3.0), bias_correction=False, adapt=True),
}


def make_model():
    """One tensor of several slices, one that starts at 0, vectors that do not adapt, one that is not trained."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(9, 11), (5,), (40,), (3, 4, 2, 2), (2, 3)]
    params = [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]
    params[3].data = params[3].data.contiguous(memory_format=torch.channels_last)
    params[4].data.zero_()
    return params


def groups_of(params):
    frozen = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64), requires_grad=False)
    return [{"params": [frozen, *params[:2]]}, {"params": params[2:4], "lr": 0.03, "adapt": True, "weight_decay": 0.02}, {"params": params[4:]}]


def whole(make, num_ranks, steps, first=0, params=None, optimizer=None):
    params = params or make_model()
    return reference(None, num_ranks, steps, params, optimizer or make(groups_of(params)), first)


def close(found, expected):
    torch.testing.assert_close(found, [p.detach() for p in expected], **EXACT)


@pytest.mark.parametrize("hosts", ["aa", "aaa", "aab"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ratios_are_those_of_whole_tensors(name, hosts):
    """As the optimizer alone does it, in float64; the state is its ordinary one, and any number of ranks goes on from it."""
    make = OPTIMIZERS[name]
    expected, plain = whole(make, len(hosts), 3)

    def rank_main(comm):
        params = make_model()
        opt = wrap(make(groups_of(params)), comm, bucket_bytes=800, **SHARDS)
        train(params, opt, comm, 3)
        assert opt._updater.flat.shared
        return [p.detach().clone() for p in params], copy.deepcopy(opt.state_dict())

    found = run_threads(len(hosts), rank_main, hosts=hosts)
    for params, state in found:
        assert all(map(same_bits, params, found[0][0]))
        close(params, expected)
        ordinary = plain.state_dict()
        assert state["state"].keys() == ordinary["state"].keys()
        for index, each in ordinary["state"].items():
            torch.testing.assert_close(state["state"][index], each, **EXACT)
    params, state = found[0]
    whole(make, 3, 2, 3, expected, plain)

    def go_on(comm, **options):
        mine = [torch.nn.Parameter(p.clone(memory_format=torch.preserve_format)) for p in params]
        opt = wrap(make(groups_of(mine)), comm, **options)
        opt.load_state_dict(copy.deepcopy(state))
        train(mine, opt, comm, 2, first=3)
        return [p.detach().clone() for p in mine]

    for options in (SHARDS, {"reduce_through": "messages"}):
        for resumed in run_threads(3, lambda comm, options=options: go_on(comm, **options)):
            close(resumed, expected)


@pytest.mark.parametrize("make", [OPTIMIZERS["lars"], OPTIMIZERS["lamb"]])
def test_more_ranks_than_elements_and_clipping(make):
    """A rank without any part takes its turn in the exchange of norms all the same."""

    def rank_main(comm):
        w = torch.nn.Parameter(torch.ones(1, 2, dtype=torch.float64))
        opt = wrap(make([w]), comm, clip_norm=1.0, **SHARDS)
        for _ in range(2):
            opt.backward(Weighted((w * 2).sum(), 1))
            opt.step()
            opt.zero_grad()
        return w.tolist()

    w = torch.nn.Parameter(torch.ones(1, 2, dtype=torch.float64))
    optimizer = make([w])
    for _ in range(2):
        w.grad = torch.full_like(w, 2.0)
        torch.nn.utils.clip_grad_norm_([w], 1.0)
        optimizer.step()
    assert run_threads(3, rank_main) == [[pytest.approx(row, rel=1e-9) for row in w.tolist()]] * 3


def test_a_hook_ends_the_shards_and_the_ratios_go_on():
    make = OPTIMIZERS["lamb"]
    expected, _ = whole(make, 2, 3)

    def rank_main(comm):
        params = make_model()
        opt = wrap(make(groups_of(params)), comm, **SHARDS)
        train(params, opt, comm, 1)
        opt.backward(Weighted(loss_of(params, 1, comm.rank), 1))
        opt.synchronize()
        opt.step()
        opt.zero_grad()
        train(params, opt, comm, 1, first=2)
        assert opt._updater.flat is None
        return [p.detach().clone() for p in params]

    for found in run_threads(2, rank_main):
        close(found, expected)


def test_it_is_taken_by_itself_and_said(monkeypatch):
    monkeypatch.setattr("hvd_trainer.optim.choose_way.AUTO_ENGINES", {"threads"})
    monkeypatch.setattr("hvd_trainer.optim.small_sums.MOST_BYTES", 0)

    def describe(comm, **options):
        opt = DistributedOptimizer(LARS([torch.nn.Parameter(torch.zeros(3, 3))], lr=1.0), comm, **options)
        return opt.describe_reduction()

    words = "each rank updates 1/2 of the parameters, norms of layers are summed over the shares"
    assert all(words in text for text in run_threads(2, describe))
    assert all("each rank updates all parameters" in text for text in run_threads(2, lambda comm: describe(comm, reduce_through="messages")))

    def refused(comm):
        with pytest.raises(ConfigError, match='update_by="shards", but LARS gains nothing in flat buffers that are not shared'):
            describe(comm, reduce_through="messages", update_by="shards")

    run_threads(2, refused)
