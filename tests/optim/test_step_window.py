"""The nominal weight, and a step of which a backward raised; what a window refuses besides is shown in test_distributed, over every way."""

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import LossError
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.optim.step_window import power_of_two
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads
from tests.optim.test_flat_update import FLAT, SHARDS, wrap

OPTIONS = {"shards": SHARDS, "flat": FLAT, "shared": {"reduce_through": "shared"}, "tensors": {**FLAT, "update_by": "tensors"}}


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 1.0), (48.0, 64.0), (45.0, 32.0), (0.3, 0.25), (2.0**40, 2.0**40), (0.0, 1.0)])
def test_the_next_power_of_two(weight, expected):
    assert power_of_two(weight) == expected


class Fails(torch.autograd.Function):
    """A user's, whose backward raises."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("no gradient here")


def make():
    return [torch.nn.Parameter(torch.ones(40)), torch.nn.Parameter(torch.ones(40))]


def fail(opt, params, **options):
    """A backward after which the second parameter has a gradient, and the first has none."""
    with pytest.raises(ArithmeticError):
        opt.backward(Weighted((Fails.apply(params[0]) + params[1]).sum(), 1), **options)


def step(opt):
    opt.step()


def clip(opt):
    opt.clip_grad_norm_(1.0)


@pytest.mark.parametrize("go_on", [step, clip])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_step_of_which_a_backward_raised_is_refused_on_all_ranks_and_thrown_away_by_zero_grad(options, go_on):
    """What was there of its gradients was averaged in."""

    def rank_main(comm):
        params = make()
        opt = wrap(torch.optim.SGD(params, lr=1.0), comm, bucket_bytes=1, **options)
        for count in range(3):
            if count == 1:
                for last in (False, True):
                    opt.backward(Weighted(sum(p.sum() for p in params), 1), last=last) if comm.rank or not last else fail(opt, params)
                for _ in range(2):
                    with pytest.raises(LossError, match=r"opt.backward raised on rank 0 at step 2: (.|\n)*opt.zero_grad\(\) on all ranks"):
                        go_on(opt)
            else:
                opt.backward(Weighted(sum(p.sum() for p in params), 1))
                opt.step()
            opt.zero_grad()
        return [p.tolist() for p in params]

    assert run_threads(2, rank_main) == [[[-1.0] * 40] * 2] * 2


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_backward_that_raised_in_a_step_that_all_ranks_throw_away(options):
    def rank_main(comm):
        params = make()
        opt = wrap(torch.optim.SGD(params, lr=1.0), comm, bucket_bytes=1, **options)
        for count in range(3):
            if count == 1 and comm.rank == 1:
                fail(opt, params)
            else:
                opt.backward(Weighted(sum(p.sum() for p in params), 1))
            if count != 1:
                opt.step()
            opt.zero_grad()
        return [p.tolist() for p in params]

    assert run_threads(2, rank_main) == [[[-1.0] * 40] * 2] * 2


def test_no_further_backward_in_a_step_of_which_one_raised():
    params = make()
    opt = wrap(torch.optim.SGD(params, lr=1.0), SingleCommunicator())
    fail(opt, params, last=False)
    with pytest.raises(LossError, match="opt.backward raised on rank 0 at step 1"):
        opt.backward(Weighted(params[0].sum(), 1))
    opt.zero_grad()
    opt.backward(Weighted(params[0].sum(), 1))
    opt.step()
    assert [p[0].item() for p in params] == [0.0, 1.0]


def test_a_scaler_does_not_hide_that_a_backward_raised():
    params = make()
    opt, scaler = wrap(torch.optim.SGD(params, lr=1.0), SingleCommunicator()), GradScaler("cpu")
    fail(opt, params, scaler=scaler)
    with pytest.raises(LossError, match="opt.backward raised"):
        scaler.step(opt)
