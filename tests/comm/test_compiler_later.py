"""torch's compiler stays out of ranks that do not compile, and finds torch's own methods where somebody does."""

import json
import subprocess
import sys

from tests.harness import ROOT, environment

PROGRAM = """
import json, sys
import torch
from hvd_trainer.comm import compiler_later
from torch.optim import SGD, Optimizer
if {defer}:
    compiler_later.defer()
said = []
def note():
    kept = [getattr(Optimizer, name).__wrapped__.__dict__.get("__dynamo_disable") for name in compiler_later.METHODS]
    said.append(["torch._dynamo" in sys.modules, sorted({{method.__module__ for method in kept if method}})])
model = torch.nn.Linear(3, 2)
plain = SGD(model.parameters(), lr=0.1)
plain.zero_grad()
plain.load_state_dict(plain.state_dict())
plain.add_param_group({{"params": [torch.nn.Parameter(torch.ones(2))]}})
note()
def step(x):
    plain.zero_grad()
    return model(x).sum()
torch.compile(step, backend="eager")(torch.ones(4, 3)).backward()
said.append([p.grad.sum().item() for p in model.parameters()])
plain.zero_grad()
plain.load_state_dict(plain.state_dict())
plain.add_param_group({{"params": [torch.nn.Parameter(torch.ones(2))]}})
note()
print(json.dumps(said))
"""
OURS, TORCHS = ["hvd_trainer.comm.compiler_later"], ["torch._dynamo.eval_frame"]


def said(defer):
    program = [sys.executable, "-c", PROGRAM.format(defer=defer)]
    done = subprocess.run(program, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_optimizer_does_not_load_it_and_whoever_compiles_has_torchs_own_methods():
    assert said(defer=True) == [[False, OURS], [24.0, 8.0], [True, TORCHS]]


def test_this_torch_would_load_it():
    """Where this fails, torch does so itself, and `compiler_later` can go."""
    assert said(defer=False)[0] == [True, TORCHS]
