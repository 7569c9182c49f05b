"""The collector gives the same numbers as all gradients in one place, however they lie on ranks and in micro-batches."""

import numpy as np
import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.optim.gradient_norms import CHUNK, GradientNorms, NormsCollector, squared_norm
from hvd_trainer.optim.noise import step_estimates
from tests.fake_comm import run_threads
from tests.vectors import vector

EXACT = vector("noise_scale_exact")


@pytest.mark.parametrize(("sizes", "expected"), [([8] * 4, EXACT.expected), (EXACT.inputs["uneven_local_batches"], EXACT.expected["uneven"])], ids=["even", "uneven"])
@pytest.mark.parametrize("where", [[[0], [1], [2], [3]], [[0, 1], [2, 3]], [[0, 1, 2, 3], []], [[3, 0, 2, 1]]], ids=str)
def test_ranks_and_micro_batches_are_the_same(where, sizes, expected):
    """The vector's four gradients on 4, 2, 2 (one without data) and 1 ranks, split into two param groups."""
    grads = torch.tensor(EXACT.inputs["rank_grads"], dtype=torch.float64)
    weights = torch.tensor(sizes, dtype=torch.float64)
    mean = (weights[:, None] * grads).sum(0) / weights.sum()

    def groups(g):
        return [[g[:1], None], [g[1:2], g[2:]]]

    def on_rank(comm):
        collector = NormsCollector(2, comm)
        for part in where[comm.rank]:
            collector.add(groups(grads[part]), sizes[part])
        collector.add(groups(grads[0] * float("nan")), 0)  # a part without weight does not exist
        return collector.finish(groups(mean))

    found = run_threads(len(where), on_rank)
    assert all(norms == found[0] for norms in found)
    norms = found[0]
    assert (norms.weight, norms.num_parts) == (sum(sizes), 4)
    signal, noise = step_estimates(sum(norms.local_sq), sum(norms.mean_sq), norms.weight, norms.num_parts)
    assert (signal, noise) == pytest.approx((expected["G2"], expected["S"]), rel=EXACT.rtol)


def test_the_mean_gradient_of_a_model_and_of_the_optimizer_agree():
    """Two ranks with 3 and 1 samples: the optimizer's averaged gradient has the norm that the collector reports."""
    x = torch.tensor([[1.0], [2.0], [-1.0], [4.0]], dtype=torch.float64)

    def on_rank(comm):
        w = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.0), comm)
        collector, mine = NormsCollector(1, comm), x[:3] if comm.rank == 0 else x[3:]
        grad = torch.autograd.grad(((w * mine) ** 2).mean(), w)[0]
        collector.add([[grad]], len(mine))
        opt.backward(ht.Weighted(((w * mine) ** 2).sum(), len(mine)))
        opt.synchronize()
        return collector.finish([[w.grad]])

    norms = run_threads(2, on_rank)[0]
    assert norms.mean_sq[0] == pytest.approx((2 * (x**2).mean().item()) ** 2)
    assert norms.local_sq[0] == pytest.approx((3 * 4.0**2 + 1 * 32.0**2) / 4)


def test_a_step_without_any_data_and_a_second_step():
    collector = NormsCollector(1, SingleCommunicator())
    empty = collector.finish([[torch.zeros(2)]])
    assert empty.num_parts == 0 and not empty.is_finite
    collector.add([[torch.ones(2)]], 2)
    assert collector.finish([[torch.ones(2)]]) == GradientNorms((2.0,), (2.0,), 2.0, 1)
    collector.add([[torch.full((2,), 2.0)]], 1)  # the first step is forgotten
    assert collector.finish([[torch.ones(2)]]).local_sq == (8.0,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_squared_norm_is_right_to_many_digits(dtype):
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator).to(dtype) for shape in ((3 * CHUNK + 7,), (), (0,), (2, 5))]
    tensors.append(torch.randn(6, 8, generator=generator).to(dtype).t())  # not contiguous
    wide = [tensor.numpy().astype(np.complex128) if dtype.is_complex else tensor.double().numpy() for tensor in tensors]
    expected = sum(float((np.abs(array) ** 2).sum()) for array in wide)
    found = squared_norm([*tensors, None])
    assert found.dtype == torch.float64 and found.item() == pytest.approx(expected, rel=3e-6)  # 1.4e-6 on one thread in bfloat16


def test_half_precision_does_not_overflow():
    assert squared_norm([torch.full((100,), 1000.0, dtype=torch.float16)]).item() == pytest.approx(1e8)


def test_overflow_is_seen():
    norms = GradientNorms((float("inf"),), (1.0,), 8.0, 2)
    assert not norms.is_finite and GradientNorms((1.0,), (1.0,), 8.0, 2).is_finite
