"""Clipping alone; that it is the averaged gradient which is clipped is tested in test_distributed."""

import pytest
import torch

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.clip import check_limit, clip_norm_, clip_value_
from tests.properties import given, st


def with_grad(*values, dtype=torch.float64):
    param = torch.nn.Parameter(torch.zeros(len(values), dtype=dtype))
    param.grad = torch.tensor(values, dtype=dtype)
    return param


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=5), st.floats(0.01, 100))
def test_norm(values, limit):
    param, other = with_grad(*values), with_grad(1.0)
    before = torch.cat([param.grad, other.grad])
    assert clip_norm_([param, other, torch.nn.Parameter(torch.zeros(1))], limit) == pytest.approx(before.norm().item())
    after = torch.cat([param.grad, other.grad])
    assert after.norm() <= limit * (1 + 1e-9) or torch.equal(after, before)
    torch.testing.assert_close(after / after.norm(), before / before.norm(), rtol=1e-9, atol=1e-12)  # same direction
    if before.norm() < limit * 0.999:
        torch.testing.assert_close(after, before, rtol=1e-12, atol=0)


def test_no_gradients():
    assert clip_norm_([torch.nn.Parameter(torch.zeros(1))], 1.0) == 0.0


def test_mixed_dtypes():
    params = [with_grad(3.0, dtype=torch.float32), with_grad(4.0), with_grad(12.0, dtype=torch.bfloat16)]
    assert clip_norm_(params, 6.5) == pytest.approx(13.0, rel=1e-3)
    assert [p.grad.item() for p in params] == pytest.approx([1.5, 2.0, 6.0], rel=1e-2)


def test_complex():
    param = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex128))
    param.grad = torch.tensor([3 + 4j, 0.5 - 12j], dtype=torch.complex128)
    assert clip_norm_([param], 1000.0) == pytest.approx((9 + 16 + 0.25 + 144) ** 0.5)
    clip_value_([param], 3.5)
    assert param.grad.tolist() == [3 + 3.5j, 0.5 - 3.5j]


@pytest.mark.parametrize("limit", [0, -1, float("nan"), "1", True, [1]])
def test_limits_that_cannot_be(limit):
    with pytest.raises(ConfigError, match="clip_norm="):
        check_limit("clip_norm", limit)
