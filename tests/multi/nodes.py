"""A training on several nodes through `NodeSums`: its parameters against plain torch, to the bit on all ranks and in a second run.

As a program, on every rank: python -m tests.multi.nodes [pretend=RANKS_A_NODE] [HOW], where HOW happens at step 3 on the last rank:
exit-0, kill, absent.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
from torch.nn import functional as F

import hvd_trainer as ht
from hvd_trainer.comm import topology
from hvd_trainer.optim.node_sums import NodeSums

STEPS = 5
SAMPLES_A_RANK = 4


def make_model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(), torch.nn.Linear(300, 5)).double()


def make_batch(step: int, ranks: range) -> tuple[torch.Tensor, torch.Tensor]:
    parts = []
    for rank in ranks:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(SAMPLES_A_RANK + rank, 20, generator=generator, dtype=torch.float64)  # uneven
        parts.append((x, x[:, :5].argmax(1)))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def train(comm: ht.Communicator, how: str = "") -> tuple[list[torch.Tensor], str]:
    model = make_model()
    opt = ht.DistributedOptimizer(make_optimizer(model), comm, lr_scaling="none", model=model)
    assert isinstance(opt._current.reducer.way, NodeSums), opt.describe_reduction()
    for step in range(STEPS):
        if step == 3 and how:
            print(f"fault at {time.time():.2f}", flush=True)
            if comm.rank == comm.size - 1:
                fault(how)
        x, y = make_batch(step, range(comm.rank, comm.rank + 1))
        opt.backward(ht.Weighted(F.cross_entropy(model(x), y, reduction="sum"), len(y)))
        if not how:
            comm.allreduce_(torch.ones(1), "between").wait()  # of the user's, between backward and step
        opt.step()
        opt.zero_grad()
    opt.release()
    return [p.detach() for p in model.parameters()], opt.describe_reduction()


def fault(how: str) -> None:
    if how == "exit-0":
        sys.exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def reference(size: int) -> list[torch.Tensor]:
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        x, y = make_batch(step, range(size))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def main() -> None:
    words = sys.argv[1:]
    if words and words[0].startswith("pretend="):
        ranks_a_node = int(words.pop(0).removeprefix("pretend="))
        host = f"node{int(os.environ['OMPI_COMM_WORLD_RANK']) // ranks_a_node}"
        topology.this_host = lambda: (host, "")
    how = words[0] if words else ""
    comm = ht.init(timeout_s=20.0 if how == "absent" else 60.0)
    (params, text), (again, _) = train(comm, how), train(comm)
    torch.testing.assert_close(params, reference(comm.size), rtol=1e-10, atol=1e-13)
    assert all(map(torch.equal, params, again))
    everyone = comm.gather_objects(params)
    assert all(torch.equal(a, b) for theirs in everyone for a, b in zip(theirs, params))
    comm.say(f"same bits on {comm.size} ranks: {text}")


if __name__ == "__main__":
    main()
