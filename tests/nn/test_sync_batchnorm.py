"""SyncBatchNorm on several ranks against torch's BatchNorm on the joined batch."""

import copy

import pytest
import torch

import hvd_trainer as ht
from tests.fake_comm import run_threads

SHARES = [[4, 4], [5, 2, 1], [3, 0, 4], [7]]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def joined(dtype, num_dims, momentum=0.1, affine=True):
    """Input, output, gradients and statistics of torch's module on the whole batch, in the wider dtype."""
    wide = torch.float32 if dtype is torch.bfloat16 else dtype
    generator = torch.Generator().manual_seed(0)
    shape = [8, 3] + [5] * num_dims
    x = torch.randn(shape, generator=generator, dtype=torch.float64).mul(3).add(2).to(dtype)
    up = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    kind = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}[num_dims]
    module = kind(3, momentum=momentum, affine=affine).to(wide)
    if affine:
        with torch.no_grad():
            module.weight.copy_(torch.tensor([0.5, 1.0, 2.0]))
            module.bias.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    return x, up, module


def close(found, expected, dtype):
    scale = expected.double().abs().max()
    assert (found.double() - expected.double()).abs().max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("shares", SHARES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("num_dims", [0, 2])
def test_equals_batchnorm_of_the_joined_batch(shares, dtype, num_dims):
    x, up, module = joined(dtype, num_dims)
    x, up = x[: sum(shares)], up[: sum(shares)]
    whole = x.clone().to(module.weight.dtype).requires_grad_()
    oracle = copy.deepcopy(module)
    out = oracle(whole)
    out.backward(up.to(out.dtype))

    def rank(comm):
        mine = ht.SyncBatchNorm.convert(copy.deepcopy(module), comm)
        begin = sum(shares[: comm.rank])
        part = x[begin : begin + shares[comm.rank]].clone().requires_grad_()
        output = mine(part)
        output.backward(up[begin : begin + shares[comm.rank]])
        return mine, output.detach(), part.grad, mine.weight.grad, mine.bias.grad

    results = run_threads(len(shares), rank)
    assert all(output.dtype == dtype for _, output, *_ in results)
    close(torch.cat([output for _, output, *_ in results]), out, dtype)
    close(torch.cat([grad for _, _, grad, *_ in results]), whole.grad, dtype)
    close(sum(grad for *_, grad, _ in results), oracle.weight.grad, dtype)
    close(sum(grad for *_, grad in results), oracle.bias.grad, dtype)
    for mine, *_ in results:
        close(mine.running_mean, oracle.running_mean, dtype)
        close(mine.running_var, oracle.running_var, dtype)
        assert mine.num_batches_tracked == 1


def test_cumulative_momentum_and_no_affine():
    x, _, module = joined(torch.float64, 2, momentum=None, affine=False)
    oracle = copy.deepcopy(module)
    for _ in range(3):
        oracle(x)
        x = x + 1

    def rank(comm):
        mine, data = ht.SyncBatchNorm.convert(copy.deepcopy(module), comm), joined(torch.float64, 2)[0]
        for _ in range(3):
            mine(data[4 * comm.rank : 4 * comm.rank + 4])
            data = data + 1
        return mine

    for mine in run_threads(2, rank):
        close(mine.running_mean, oracle.running_mean, torch.float64)
        close(mine.running_var, oracle.running_var, torch.float64)


def test_evaluation_uses_running_statistics_and_no_collective():
    x, _, module = joined(torch.float32, 2)
    module(x)
    module.eval()

    def rank(comm):
        mine = ht.SyncBatchNorm.convert(copy.deepcopy(module), comm)
        before = len(comm.sent)
        output = mine(x[: 3 + comm.rank])
        return output, len(comm.sent) - before

    for number, (output, num_sent) in enumerate(run_threads(2, rank)):
        assert num_sent == 0
        assert torch.equal(output, module(x[: 3 + number]))


def test_convert_keeps_the_parameter_objects_and_the_mode():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.Sequential(torch.nn.BatchNorm2d(3)))
    weight, names = model[1][0].weight, list(model.state_dict())

    def rank(comm):
        return ht.SyncBatchNorm.convert(copy.deepcopy(model).eval(), comm), ht.SyncBatchNorm.convert(model, comm)

    ((evaluating, converted),) = run_threads(1, rank)
    assert not evaluating[1][0].training
    assert converted[1][0].weight is weight
    assert list(converted.state_dict()) == names
    copied = copy.deepcopy(converted)
    assert copied[1][0].weight is not weight
    assert list(copied.state_dict()) == names


def test_refuses_one_dimension():
    def rank(comm):
        with pytest.raises(ValueError, match="at least 2 dimensions"):
            ht.SyncBatchNorm(3, comm)(torch.zeros(3))

    run_threads(1, rank)
