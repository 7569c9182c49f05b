"""The models are those of the table, the same on all ranks, with batches of their own; a user's script is checked."""

from dataclasses import replace

import pytest
import torch

from hvd_trainer.bench import models
from hvd_trainer.bench.workloads import BY_NAME, Workload
from hvd_trainer.errors import ConfigError
from hvd_trainer.values import Weighted


@pytest.mark.parametrize(
    ("name", "num_params", "num_tensors"),
    [
        ("mlp", 26_122, 6), ("cnn", 169_882, 38), ("transformer", 1_190_922, 74), ("wide", 18_923_530, 6),
        ("params-1e5", 100_000, 10), ("params-1e6", 998_560, 10),
        ("tensors-10", 1_024_000, 10), ("tensors-1000", 1_024_000, 1000),
    ],
)  # fmt: skip
def test_sizes(name, num_params, num_tensors):
    task = models.build(BY_NAME[name], 0, 2)
    assert (task.num_params, task.num_tensors) == (num_params, num_tensors)


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "tensors-1000"])
def test_a_step_lowers_the_loss(name):
    task = models.build(replace(BY_NAME[name], rank_batch=4), 0, 1)
    losses = []
    for _ in range(2):
        task.optimizer.zero_grad()
        loss = task.loss(task.model, task.batches[0])
        assert loss.weight == 4
        (loss.total / loss.weight).backward()
        task.optimizer.step()
        losses.append(float(loss.total.detach()))
    assert losses[1] < losses[0]


def test_ranks_share_the_model_and_not_the_batches():
    one, two = (models.build(BY_NAME["mlp"], rank, 2) for rank in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters()))
    drawn = [x for task in (one, two) for x, _ in task.batches]
    assert not any(torch.equal(a, b) for i, a in enumerate(drawn) for b in drawn[:i])
    again = models.build(BY_NAME["mlp"], 1, 2)
    assert all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in zip(two.batches, again.batches))


SCRIPT = """
import torch
def make():
    model = torch.nn.Linear(3, 1)
    def loss(model, batch):
        return model(batch).square().mean()
    return model, loss, lambda n: torch.randn(n, 3), torch.optim.AdamW(model.parameters())
"""


def test_a_users_script(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    task = models.build(Workload("mine", "", script=str(path), global_batch=9), 1, 2)
    assert task.num_params == 4 and task.batches[0].shape == (4, 3)
    assert not isinstance(task.loss(task.model, task.batches[0]), Weighted)


@pytest.mark.parametrize("text", ["", "make = 3", "def make():\n    return 1, 2"])
def test_a_script_without_the_four_is_refused(tmp_path, text):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match="make"):
        models.build(Workload("mine", "", script=str(path)), 0, 1)
