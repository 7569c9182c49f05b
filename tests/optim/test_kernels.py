import pytest
import torch

from hvd_trainer.optim import kernels
from hvd_trainer.optim.kernels import run_backward


def gradients(backward):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    seen = []
    model[0].weight.register_post_accumulate_grad_hook(lambda param: seen.append(param.grad is not None))
    for _ in range(2):  # the second adds
        total = model(torch.ones(5, 3)).square().sum()
        backward(total, torch.full_like(total, 0.25))
    return [param.grad for param in model.parameters()], seen


@pytest.mark.parametrize("is_known", [True, False])
def test_gradients_are_those_of_torch(monkeypatch, is_known):
    monkeypatch.setattr(kernels, "_engine_is_known", [is_known])
    found, seen = gradients(run_backward)
    expected, _ = gradients(torch.autograd.backward)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected))
    assert seen == [True, True]


def test_this_torch_has_the_engine():
    assert kernels._engine_works()


@pytest.mark.parametrize("engine", [None, object()], ids=["not there", "another interface"])
def test_an_unknown_engine_is_not_used(monkeypatch, engine):
    monkeypatch.setattr(kernels, "_ENGINE", engine)
    monkeypatch.setattr(kernels, "_engine_is_known", [])
    found, _ = gradients(run_backward)
    assert kernels._engine_is_known == [False]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, gradients(torch.autograd.backward)[0]))


def test_inside_a_functorch_transform_torch_refuses():
    weight = torch.ones((), requires_grad=True)
    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.vmap(lambda x: run_backward(weight * 2, torch.ones(())) or x)(torch.ones(2))
