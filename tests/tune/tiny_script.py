"""A script as a user has it, small: the digits with every field that a search can set."""

from dataclasses import dataclass

import torch

import hvd_trainer as ht
from examples.digits import accuracy, loss_fn


@dataclass
class Config:
    global_batch: int = 32
    lr: float = 0.1
    optimizer: str = "sgd"
    warmup_epochs: float = 0.5
    epochs: int = 8
    seed: int = 0
    break_at: int = 0  # a batch from which on a rank is killed, as the kernel does it


def main(comm, config):
    if config.break_at and config.global_batch >= config.break_at:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train_set, test_set = (torch.utils.data.TensorDataset(x[part], y[part]) for part in (slice(0, 1437), slice(1437, None)))
    torch.manual_seed(config.seed)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)).to(comm.device)
    optimizer = ht.make_optimizer(config.optimizer, model, lr=config.lr)
    plan = ht.BatchPlan(config.global_batch, comm.size, reference_batch=32)
    trainer = ht.Trainer(comm, model, optimizer, loss_fn, callbacks=[ht.Warmup(config.warmup_epochs), ht.Evaluate(test_set, accuracy)])
    trainer.fit(ht.Loader(train_set, plan, comm, seed=config.seed), epochs=config.epochs)


if __name__ == "__main__":
    ht.run(main, Config())
