"""The handwritten digits with a loop of your own, without `ht.Trainer`:

    python examples/own_loop.py
    mpirun -np 2 python examples/own_loop.py --json result.json
"""

import argparse
import json
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import hvd_trainer as ht

parser = argparse.ArgumentParser()
parser.add_argument("--json", type=Path, help="where rank 0 writes the result")
arguments = parser.parse_args()
comm = ht.init()  # from here on an error on one rank ends the whole job
digits = load_digits()
x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
train_set, test_set = (TensorDataset(x[part], y[part]) for part in (order[:1437], order[1437:]))
plan = ht.BatchPlan(global_batch=64, num_ranks=comm.size, reference_batch=32, micro_batch=24)
loader = ht.Loader(train_set, plan, comm, seed=0)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(comm.device)
opt = ht.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), comm, plan=plan, model=model)
num_epochs, per_epoch = 15, len(loader)
rates = ht.LearningRate(opt, ht.schedules.linear(), per_epoch, num_epochs * per_epoch, warmup_steps=2 * per_epoch)
metrics = {"test_accuracy": lambda model, xy: ht.Weighted((model(xy[0]).argmax(1) == xy[1]).sum(), len(xy[1]))}
for epoch in range(num_epochs):
    started_s, loss = time.perf_counter(), ht.Weighted(0.0, 0.0)
    for step in loader.epoch(epoch):
        rates.apply(opt.steps_done)
        for micro in step:  # none where a small last batch leaves nothing for this rank; it steps all the same
            inputs, labels = micro.data
            total = F.cross_entropy(model(inputs), labels, reduction="sum")
            opt.backward(ht.Weighted(total, len(labels)), last=micro.last)
        opt.step()
        opt.zero_grad()
        loss += opt.last_loss  # over all ranks, the same on each
    row = {"epoch": epoch + 1, "loss": loss.mean, "samples_per_s": len(train_set) / (time.perf_counter() - started_s)}
    row.update(ht.evaluate(model, test_set, metrics, comm))
    comm.say(f"epoch {row['epoch']}  loss {loss.mean:.4f}  {row['samples_per_s']:,.0f} samples/s  accuracy {row['test_accuracy']:.4f}")
if arguments.json and comm.rank == 0:
    arguments.json.write_text(json.dumps({**row, "ranks": comm.size, "lr_peak": opt.peak_lr}) + "\n")
