"""Program for several ranks that makes a user's mistakes.

    python -m tests.multi.wrong_input MISTAKE FOLDER              makes one; FOLDER/begun is the time of the last step before it
    python -m tests.multi.wrong_input each FOLDER MISTAKE ...     one after the other (`make_each`)
"""

from __future__ import annotations

import json
import math
import sys
import time
from functools import partial
from pathlib import Path

import torch

import hvd_trainer as ht
from hvd_trainer.comm import guard
from tests.multi.cases import CASES, loss_function, make_data, make_model

INIT = {
    "mpi engine with gloo": {"engine": "mpi", "backend": "gloo"},
    "single engine on 2 ranks": {"engine": "single"},
    "unknown backend": {"backend": "ncll"},
    "unknown engine": {"engine": "horovd"},
    "nccl without gpu": {"backend": "nccl"},
    "timeout of zero": {"timeout_s": 0},
}

# One rank raises and the others wait for it, so each of these ends its job.
ALONE = ("loss raises on rank 1", "callback raises on rank 1", "data set raises at one index")
# Rank 1 leaves rank 0 one second to speak and end the job. mpirun takes 0.26 s of it to end rank 1 on a quiet machine, and on
# one that is busy with other tests now and then all of it: then rank 1 said the same once more.
PATIENCE_S = 6.0


def mark(folder):
    (folder / "begun").write_text(str(time.time()))


class RaisesOnRank1(ht.Callback):
    def step_end(self, trainer, report):
        if trainer.comm.rank == 1 and report.step == 3:
            raise RuntimeError("the callback failed")


def loss_fn(mistake, comm, folder):
    good = loss_function("weighted")
    calls = 0

    def wrong(model, batch):
        nonlocal calls
        calls += 1
        if comm.rank == 0 or "rank 1" in mistake:
            mark(folder)
        loss = good(model, batch)
        if mistake == "loss is a float":
            return float(loss.total)
        if mistake == "loss is a plain tensor":
            return loss.total
        if mistake == "loss has a shape":
            return ht.Weighted(torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none"), len(batch[1]))
        if mistake == "loss without gradient":
            return ht.Weighted(loss.total.detach(), loss.weight)
        if mistake == "loss raises on rank 1" and comm.rank == 1 and calls == 3:
            raise RuntimeError("the loss failed")
        if mistake == "loss is nan on rank 1" and comm.rank == 1 and calls == 3:
            return ht.Weighted(loss.total * math.nan, loss.weight)
        if mistake == "weight 0 everywhere":
            return ht.Weighted(loss.total * 0, 0)
        return loss

    return wrong


def main(comm, mistake, folder):
    model = make_model(torch.float32)
    if mistake == "model without parameters":
        model = torch.nn.Sequential(torch.nn.Tanh())
    if mistake == "resume another model" or (mistake == "models differ" and comm.rank == 1):
        model[0] = torch.nn.Linear(6, 9, bias=False)
    lr = {"rate is nan": math.nan, "rate is negative": -0.1}.get(mistake, 0.1)
    parameters = list(model.parameters()) or [torch.nn.Parameter(torch.zeros(1))]
    torch.optim.SGD(parameters, lr=0.1)  # the first optimizer of a process imports for seconds
    mark(folder)
    optimizer = torch.optim.SGD(parameters, lr=lr)
    batch = {"global batch of zero": 0, "global batch below ranks": comm.size - 1, "global batch of a half": 8.5}.get(mistake, 17)
    plan = ht.BatchPlan(batch, comm.size)
    data = make_data(torch.float32)
    if mistake == "empty data set":
        data = torch.utils.data.Subset(data, [])
    if mistake == "data sets differ" and comm.rank == 1:
        data = torch.utils.data.Subset(data, range(100))
    if mistake == "data set raises at one index":
        data = [(x, y) for x, y in data]
        data[50] = None  # the collate function meets it on one rank
    callbacks = []
    if mistake == "metric named loss":
        callbacks.append(ht.Evaluate(data, lambda model, batch: {"loss": ht.Weighted(1.0, 1)}))
    if mistake == "empty validation set":
        callbacks.append(ht.Evaluate([], lambda model, batch: {}))
    if mistake == "validation sets differ":
        callbacks.append(ht.Evaluate(list(range(10 + comm.rank)), lambda model, batch: {"n": ht.Weighted(1.0, 1)}))
    if mistake == "checkpoint folder is a file":
        (folder / "file").write_text("")
        callbacks.append(ht.Checkpoint(folder / "file"))
    if mistake == "negative warm-up":
        callbacks.append(ht.Warmup(epochs=-1))
    if mistake == "early stop on nothing":
        callbacks.append(ht.EarlyStop("val_los"))
    if mistake == "lbfgs":
        optimizer = torch.optim.LBFGS(parameters)
    if mistake == "optimizer wrapped already":
        optimizer = ht.DistributedOptimizer(optimizer, comm)
    if mistake == "init twice":
        ht.init()
    if mistake == "callback raises on rank 1":
        callbacks.append(RaisesOnRank1())
    if mistake == "metric is a mean":
        callbacks.append(ht.Evaluate(data, lambda model, batch: {"accuracy": 0.5}))
    if mistake == "callback is a class":
        callbacks.append(ht.Progress)
    schedule = (lambda step: math.nan) if mistake == "schedule gives nan" else None
    scaling = "quadratic" if mistake == "unknown scaling rule" else "linear"
    options = {"precision": "int8"} if mistake == "unknown precision" else {}
    trainer = ht.Trainer(
        comm, model, optimizer, loss_fn(mistake, comm, folder), callbacks=callbacks, schedule=schedule, lr_scaling=scaling, **options
    )
    resume = {"resume another model": str(folder / "runs"), "resume from nothing": str(folder / "none")}.get(mistake)
    epochs = {"no epochs": None, "half an epoch": 0.5}.get(mistake, 2)
    trainer.fit(ht.Loader(data, plan, comm), epochs=epochs, resume=resume)


def save_a_run(folder):
    """What "resume another model" finds."""
    from hvd_trainer.comm.single import SingleCommunicator
    from tests.multi.cases import train

    case = next(case for case in CASES if case.name == "sgd float32")
    train(SingleCommunicator(), case, steps=2, callbacks=[ht.Checkpoint(folder / "runs")])


def make_each(mistakes, folder):
    """Catch the errors; FOLDER/each.json has {mistake: [(message, seconds) of rank 0, of rank 1, ...]}.

    After each mistake the ranks meet. Where one of them has an error and another waits for it, the job ends here.
    """
    before_the_start = {mistake: told(partial(ht.init, **INIT[mistake])) for mistake in mistakes if mistake in INIT}
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # imports for seconds, which are none of the first mistake's
    comm, found = ht.init(timeout_s=20), {}
    for mistake in mistakes:
        mine = before_the_start.get(mistake) or told(partial(main, comm, mistake, folder))
        found[mistake] = comm.gather_objects(mine)
        if comm.rank == 0:
            (folder / "each.json").write_text(json.dumps(found))
    comm.close()


def told(function):
    """What the guard would print of the error that `function` raises, and after how many seconds."""
    begin, message = time.monotonic(), "no error"
    try:
        function()
    except Exception as error:
        message = guard.describe(error, *guard.place(), "start")
    return message, time.monotonic() - begin


if __name__ == "__main__":
    the_mistake, the_folder = sys.argv[1], Path(sys.argv[2])
    if the_mistake == "each":
        make_each(sys.argv[3:], the_folder)
    else:
        if the_mistake in INIT:
            mark(the_folder)
        if the_mistake not in ALONE:
            guard.GRACE_S = guard.LONGEST_GRACE_S = PATIENCE_S
        ht.run(lambda comm: main(comm, the_mistake, the_folder), **INIT.get(the_mistake, {}))
