"""Counts, confusion matrices and accumulating objects over uneven shards: exact, and the same on every rank."""

import json

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads

NUM_CLASSES = 3
LABELS = [0, 1, 2, 1, 1, 0, 2, 2, 2, 0, 1]
GUESSES = [0, 2, 2, 1, 0, 0, 1, 2, 2, 0, 1]
DATA = list(zip(GUESSES, LABELS))
MODEL = torch.nn.Identity()


class MacroRecall:
    """An accumulator as torchmetrics writes them: its result is no mean over samples."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.right, self.count = torch.zeros(NUM_CLASSES), torch.zeros(NUM_CLASSES)

    def update(self, guess, label):
        self.count += torch.bincount(label, minlength=NUM_CLASSES)
        self.right += torch.bincount(label[guess == label], minlength=NUM_CLASSES)

    def merge_state(self, other):
        self.count += other.count
        self.right += other.right

    def compute(self):
        return (self.right / self.count).mean()


def confusion(model, batch):
    guess, label = batch
    matrix = torch.zeros(NUM_CLASSES, NUM_CLASSES, dtype=torch.int64)
    matrix.index_put_((label, guess), torch.ones(len(label), dtype=torch.int64), accumulate=True)
    return matrix


METRICS = {
    "accuracy": lambda model, batch: ht.Weighted((batch[0] == batch[1]).sum(), len(batch[0])),
    "confusion": confusion,
    "num_right": lambda model, batch: (batch[0] == batch[1]).sum(),
    "any_bool": lambda model, batch: (batch[0] == batch[1])[:1],
    "mass": lambda model, batch: torch.tensor(0.1, dtype=torch.float32).repeat(2),
    "recall": (MacroRecall(), lambda model, batch: batch),
}


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_all_kinds(num_ranks):
    ranks = run_threads(num_ranks, lambda comm: ht.evaluate(MODEL, DATA, METRICS, comm, batch_size=1))
    assert ranks == [ranks[0]] * num_ranks
    classes = range(NUM_CLASSES)
    expected = [[sum(pair == (guess, label) for pair in DATA) for guess in classes] for label in classes]
    assert ranks[0]["confusion"] == expected
    right = sum(guess == label for guess, label in DATA)
    assert ranks[0]["num_right"] == right
    assert isinstance(ranks[0]["num_right"], int)
    assert ranks[0]["any_bool"] == [right]
    assert ranks[0]["accuracy"] == right / len(DATA)
    assert ranks[0]["mass"] == pytest.approx([0.1 * len(DATA)] * 2)
    assert ranks[0]["recall"] == pytest.approx(sum(expected[k][k] / sum(expected[k]) for k in range(3)) / 3)
    json.dumps(ranks[0])


def test_more_ranks_than_samples_and_large_integers():
    big = 2**53 + 1  # a float64 cannot hold it

    def metrics(model, batch):
        return {"big": torch.tensor([[big]])}

    assert run_threads(3, lambda comm: ht.evaluate(MODEL, [1], metrics, comm)) == [{"big": [[big]]}] * 3


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_torchmetrics(num_ranks):
    from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassF1Score

    def metrics():
        return {
            "f1": (MulticlassF1Score(NUM_CLASSES, average="macro"), lambda model, batch: batch),
            "matrix": (MulticlassConfusionMatrix(NUM_CLASSES), lambda model, batch: batch),
        }

    whole = metrics()["f1"][0]
    whole.update(torch.tensor(GUESSES), torch.tensor(LABELS))
    for found in run_threads(num_ranks, lambda comm: ht.evaluate(MODEL, DATA, metrics(), comm, batch_size=2)):
        assert found["f1"] == pytest.approx(whole.compute().item())
        assert sum(map(sum, found["matrix"])) == len(DATA)


def test_an_accumulator_of_the_user_keeps_what_it_holds():
    mine = MacroRecall()
    mine.update(torch.tensor([1]), torch.tensor([1]))
    before = mine.count.clone()
    run_threads(2, lambda comm: ht.evaluate(MODEL, DATA, {"recall": (mine, lambda model, batch: batch)}, comm))
    assert torch.equal(mine.count, before)


def test_refusals():
    def rank(comm):
        with pytest.raises(ConfigError, match="merge_state"):
            ht.evaluate(MODEL, DATA, {"list": ([], lambda model, batch: batch)}, comm)
        with pytest.raises(ConfigError, match="a mean cannot be averaged"):
            ht.evaluate(MODEL, DATA, {"mean": lambda model, batch: 0.5}, comm)

    run_threads(1, rank)

    def shapes(comm):
        with pytest.raises(ConfigError, match="another shape"):
            ht.evaluate(MODEL, DATA, lambda model, batch: {"n": torch.ones(1 + comm.rank)}, comm)

    run_threads(2, shapes)
