"""A step asks the kernel for no memory once it is warm: malloc keeps what the step before has freed."""

import subprocess
import sys

import pytest

from tests.harness import ROOT, environment

# A weight of 64 MiB, or of 4: from 32 MiB on glibc maps a block anew each time. Its gradient is made and freed in every step.
PROGRAM = """
import resource, sys, torch
import hvd_trainer as ht
torch.set_num_threads(1)
width = int(sys.argv[1])
model = torch.nn.Linear(width, width)
opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), ht.init(engine="single"))
x = torch.ones(4, width)
def step():
    opt.zero_grad()
    opt.backward(ht.Weighted(model(x).square().sum(), 4))
    opt.step()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
each = []
for _ in range(9):
    before = faults()
    step()
    each.append(faults() - before)
print("faults", sorted(each)[4])  # the heap may still grow in a step now and then
"""
LARGE, PAGES_OF_LARGE = 4096, 16384


def faults_per_step(width, **variables):
    program = [sys.executable, "-c", PROGRAM, str(width)]
    done = subprocess.run(program, cwd=ROOT, env={**environment(), **variables}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ("HVD_TRAINER_MALLOC=all they are kept" in done.stdout) == (width == LARGE and not variables)
    return float(done.stdout.rpartition("faults")[2])


def test_a_warm_step_takes_no_new_pages():
    assert faults_per_step(1024) < 50
    assert faults_per_step(LARGE, HVD_TRAINER_MALLOC="all") < PAGES_OF_LARGE / 20


@pytest.mark.parametrize("variables", [{}, {"HVD_TRAINER_MALLOC": "system"}, {"MALLOC_TOP_PAD_": "131072"}])
def test_large_blocks_go_back_and_the_user_has_the_last_word(variables):
    assert faults_per_step(LARGE, **variables) > PAGES_OF_LARGE / 2


def test_another_word_is_refused():
    program = [sys.executable, "-c", PROGRAM, "8"]
    done = subprocess.run(program, cwd=ROOT, env={**environment(), "HVD_TRAINER_MALLOC": "keep"}, capture_output=True, text=True, timeout=120)
    assert done.returncode and "HVD_TRAINER_MALLOC=keep" in done.stderr and "blocks, all, system" in done.stderr
