"""Every name gives a working optimizer; a wrong one an error that lists the right ones."""

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.by_name import optimizers
from hvd_trainer.optim.trust_ratio import layerwise_groups, norms_and_biases

# Muon takes matrices alone, SparseAdam sparse gradients alone.
SPECIAL = {"muon", "sparseadam"}


def test_all_of_torch_and_ours_are_there():
    classes = {kind for name, kind in vars(torch.optim).items() if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)}
    assert set(optimizers().values()) == (classes - {torch.optim.Optimizer, torch.optim.LBFGS}) | {ht.LARS, ht.LAMB}


@pytest.mark.parametrize("name", [name for name in optimizers() if name not in SPECIAL])
def test_each_takes_a_step_and_its_state_comes_back(name):
    def trained(state=None):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 1))
        opt = ht.make_optimizer(name, model, lr=0.01)
        if state:
            opt.load_state_dict(state)
        before = [param.detach().clone() for param in model.parameters()]
        model(torch.ones(2, 3)).square().sum().backward()
        opt.step()
        return opt, any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))

    opt, moved = trained()
    assert moved and type(opt) is optimizers()[name]
    again, moved = trained(opt.state_dict())
    assert moved
    assert again.state_dict()["param_groups"] == opt.state_dict()["param_groups"]


def test_settings_as_a_yaml_file_gives_them():
    opt = ht.make_optimizer("adamw", [torch.nn.Parameter(torch.zeros(1))], lr="1e-3", betas=[0.9, 0.95])
    assert opt.defaults["lr"] == 1e-3 and opt.defaults["betas"] == (0.9, 0.95)


def test_param_groups_are_passed_on():
    weight, bias = torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))
    opt = ht.make_optimizer("lamb", [{"params": [weight], "lr": 0.5}, {"params": [bias]}], lr=0.1)
    assert [(group["lr"], group["adapts"]) for group in opt.param_groups] == [(0.5, [True]), (0.1, [False])]


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("adamww",), {}, r"no optimizer is called 'adamww'(?s:.)*lamb, lars(?s:.)*did you mean 'adamw'"),
        (("lbfgs",), {}, r"no optimizer is called 'lbfgs'"),
        ((3,), {}, r"no optimizer is called 3"),
        (("sgd",), {"momentun": 0.9}, r"SGD has no setting 'momentun'(?s:.)*did you mean momentum\?"),
        (("lars",), {}, r"LARS without lr"),
        (("sgd",), {"lr": -1.0}, r"SGD\(\{'lr': -1.0\}\): Invalid learning rate"),
        (("lars",), {"lr": -1.0}, r"LARS\(lr=-1.0\)"),
        (("adam",), {"lr": "high"}, r"Adam\(\{'lr': 'high'\}\)"),
    ],
    ids=str,
)
def test_what_cannot_be(arguments, settings, message):
    with pytest.raises(ConfigError, match=message):
        ht.make_optimizer(*arguments, torch.nn.Linear(1, 1), **settings)


def test_norms_are_found_by_kind_not_by_shape():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = torch.nn.MultiheadAttention(4, 2, add_bias_kv=True)
            self.norm = torch.nn.LayerNorm([2, 2, 2])
            self.position = torch.nn.Parameter(torch.zeros(4))

    block = Block()
    assert norms_and_biases(block) == {"attention.in_proj_bias", "attention.bias_k", "attention.bias_v", "attention.out_proj.bias", "norm.weight", "norm.bias"}
    adapting, excluded = layerwise_groups(block)
    assert adapting["adapt"] and not excluded["adapt"] and excluded["weight_decay"] == 0.0
    assert len(adapting["params"]) + len(excluded["params"]) == len(list(block.parameters()))
