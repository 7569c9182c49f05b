"""A step asks the kernel for no memory once it is warm: malloc keeps what the step before has freed."""

import subprocess
import sys

import pytest

from tests.harness import ROOT, environment

# A weight of 64 MiB: from 32 MiB on glibc never keeps a block. Its gradient is made and freed in every step.
PROGRAM = """
import resource, torch
import hvd_trainer as ht
torch.set_num_threads(1)
model = torch.nn.Linear(4096, 4096)
opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), ht.init(engine="single"))
x = torch.ones(4, 4096)
def step():
    opt.zero_grad()
    opt.backward(ht.Weighted(model(x).square().sum(), 4))
    opt.step()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
before = faults()
for _ in range(5):
    step()
print("faults", (faults() - before) / 5)
"""
PAGES_OF_THE_GRADIENT = 16384


def faults_per_step(**variables):
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env={**environment(), **variables}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.rpartition("faults")[2])


def test_a_warm_step_takes_no_new_pages():
    assert faults_per_step() < PAGES_OF_THE_GRADIENT / 20


@pytest.mark.parametrize("variable", [{"HVD_TRAINER_MALLOC": "system"}, {"MALLOC_MMAP_THRESHOLD_": "1000000"}])
def test_the_user_has_the_last_word(variable):
    assert faults_per_step(**variable) > PAGES_OF_THE_GRADIENT / 2
