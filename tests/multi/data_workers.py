"""Program for two ranks: shards of unequal length; two epochs and a resume in mid-epoch with and without workers, compared bit by bit.

Arguments: "same FILE" saves what was drawn for each sample; "die" ends rank 1 while its workers read.
"""

import os
import sys
import time

import torch

import hvd_trainer as ht
from tests.data.augmented import Augmented


class Slow(Augmented):
    def __getitem__(self, index):
        if index == 29:
            time.sleep(3600)  # a worker that never looks up
        return super().__getitem__(index)


def loss_fn(model, batch):
    return ht.Weighted((model(batch.float() / 30) - 1).square().sum(), len(batch))


def train(comm, loader, folder, stops):
    for steps in stops:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        trainer = ht.Trainer(
            comm, model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn, callbacks=[ht.Checkpoint(folder)]
        )
        trainer.fit(loader, steps=steps, resume="auto")
    return [p.detach() for p in model.parameters()]


def shards_of_unequal_length(comm):
    """One rank is out three steps before the other; every sample counts once."""
    mine = [torch.full((4,), float(10 * comm.rank + i)) for i in range([3, 10][comm.rank])]
    loader = ht.StreamLoader(mine, ht.BatchPlan(4, comm.size, reference_batch=4), comm, sharded=True)
    assert [step.global_samples for step in loader.epoch(0)] == [4, 3, 2, 2, 2]
    model = torch.nn.Linear(4, 1)
    trainer = ht.Trainer(comm, model, torch.optim.SGD(model.parameters(), lr=0.001), loss_fn)
    assert [(row["epoch"], row["step"]) for row in trainer.fit(loader, epochs=2)] == [(1, 5), (2, 10)]
    ht.replica_check(model, comm)


def main(comm):
    if sys.argv[1] == "die":
        loader = ht.Loader(Slow(), ht.BatchPlan(8, comm.size), comm, shuffle=False, num_workers=1, prefetch=4)
        for step in loader.epoch(0):
            list(step)
            if comm.rank == 1:
                os._exit(3)
            comm.barrier("step")
    plan = ht.BatchPlan(8, comm.size, reference_batch=8, micro_batch=3)
    loaders = [ht.Loader(Augmented(), plan, comm, seed=2, num_workers=number) for number in (0, 1)]
    drawn = []
    for loader in loaders:
        batches = [micro.data for epoch in range(2) for step in loader.epoch(epoch) for micro in step]
        drawn.append([sample for batch in batches for sample in batch.tolist()])
    assert drawn[0] == drawn[1]
    folder = sys.argv[2] + ".runs"
    straight = train(comm, loaders[0], f"{folder}/straight", [7])
    stopped = train(comm, loaders[1], f"{folder}/stopped", [2, 7])  # an epoch has 4 steps; the workers go on where it was left
    assert all(map(torch.equal, straight, stopped))
    shards_of_unequal_length(comm)
    everything = sum(comm.gather_objects(drawn[0]), [])
    if comm.rank == 0:
        torch.save(sorted(everything), sys.argv[2])


if __name__ == "__main__":
    ht.run(main)
