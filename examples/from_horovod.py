"""An ordinary Horovod script, moved over: below "before" stands what the script said with horovod.torch.

    python examples/from_horovod.py --set epochs=20
    horovodrun -np 2 python examples/from_horovod.py --json result.json
"""

import argparse
import json
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hvd_trainer as ht

# before: hvd.init(); torch.cuda.set_device(hvd.local_rank()); torch.set_num_threads(...)
#         sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())    repeats samples
#         loader = DataLoader(train_set, batch_size=32, sampler=sampler)                       grows with the ranks
#         optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
#         optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
#         hvd.broadcast_parameters(model.state_dict(), root_rank=0)
#         hvd.broadcast_optimizer_state(optimizer, root_rank=0)                                takes a step (issue 3743)
#         sampler.set_epoch(epoch)
#         F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()     a mean of means
#         accuracy = hvd.allreduce(torch.tensor(correct / seen))                               and another


def main(comm, config):  # comm: connected, on its device, with its share of the cores
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train_set, test_set = TensorDataset(x[:1437], y[:1437]), TensorDataset(x[1437:], y[1437:])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(comm.device)
    loader = ht.Loader.from_dataloader(DataLoader(train_set, batch_size=32, shuffle=True), comm)  # 32 a rank
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    optimizer = ht.DistributedOptimizer(optimizer, comm, plan=loader.plan, model=model)  # scales the rate
    metrics = {"test_accuracy": lambda model, xy: ht.Weighted((model(xy[0]).argmax(1) == xy[1]).sum(), len(xy[1]))}
    for epoch in range(config["epochs"]):
        started_s = time.perf_counter()
        for step in loader.epoch(epoch):
            for micro in step:
                inputs, labels = micro.data
                total = F.cross_entropy(model(inputs), labels, reduction="sum")
                optimizer.backward(ht.Weighted(total, len(labels)), last=micro.last)
            optimizer.step()
            optimizer.zero_grad()
        row = {"samples_per_s": len(train_set) / (time.perf_counter() - started_s)}
        row |= ht.evaluate(model, test_set, metrics, comm)
        comm.say(f"epoch {epoch + 1}  accuracy {row['test_accuracy']:.4f}  {row['samples_per_s']:,.0f} samples/s")
    if config["json"] and comm.rank == 0:
        Path(config["json"]).write_text(json.dumps({**row, "ranks": comm.size, "lr_peak": optimizer.peak_lr}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", default="", help="where rank 0 writes the result")
    json_file = parser.parse_known_args()[0].json  # --set and --config are read by ht.run
    ht.run(main, {"epochs": 15, "lr": 0.05, "json": json_file})
