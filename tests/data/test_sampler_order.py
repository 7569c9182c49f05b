"""The user's sampler: one list for all ranks, the same for any number of them and after a resume."""

import random
import re

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.data.sample_seeds import random_states, same_states
from hvd_trainer.errors import CheckpointError, ConfigError, DataError
from hvd_trainer.plan import BatchPlan
from tests.fake_comm import OtherRankFailed, run_threads
from tests.train.small import make_loader, make_trainer, parameters

DATA = list(range(40))


def weighted(generator=None):
    return WeightedRandomSampler([1.0 + (i % 4) for i in range(40)], 30, replacement=True, generator=generator)


class Mixed(Sampler):
    """Draws from all three global generators."""

    def __len__(self):
        return 12

    def __iter__(self):
        yield from (random.randrange(40) for _ in range(4))
        yield from np.random.randint(0, 40, 4)
        yield from torch.randint(0, 40, (4,))


def order_of(num_ranks, make_sampler, epoch=0, first_step=0):
    """The samples in the order of the global batches; each rank has a sampler of its own, as in a job."""

    def rank_main(comm):
        loader = Loader(DATA, BatchPlan(8, num_ranks, micro_batch=3), comm, seed=1, sampler=make_sampler())
        assert loader.num_samples == len(make_sampler())
        return [[index for micro in step.indices for index in micro] for step in loader.epoch(epoch, first_step)]

    return [index for step in zip(*run_threads(num_ranks, rank_main)) for rank in step for index in rank]


SAMPLERS = {
    "weighted": weighted,
    "weighted with a generator": lambda: weighted(torch.Generator().manual_seed(random.randrange(99))),
    "random": lambda: RandomSampler(DATA, replacement=True, num_samples=33),
    "subset": lambda: SubsetRandomSampler(range(5, 25)),
    "own": Mixed,
    "list": lambda: [3, 1, 4, 1, 5, 39],
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_for_any_number_of_ranks_and_from_any_step(name):
    make_sampler = SAMPLERS[name]
    straight = order_of(1, make_sampler, epoch=2)
    assert len(straight) == len(make_sampler())
    assert order_of(2, make_sampler, epoch=2) == order_of(3, make_sampler, epoch=2) == straight
    assert order_of(2, make_sampler, epoch=2, first_step=1) == straight[8:]
    assert (order_of(1, make_sampler, epoch=3) == straight) == (name == "list")


def test_weights_are_what_they_say():
    order = sum((order_of(1, weighted, epoch) for epoch in range(60)), [])
    counts = np.bincount(np.array(order) % 4, minlength=4)
    expected = 1800 * np.array([1, 2, 3, 4]) / 10
    assert ((counts - expected) ** 2 / expected).sum() < 30  # 3 degrees of freedom: once in a million


def test_global_states_are_not_disturbed_and_set_epoch_is_called():
    class Told(Mixed):
        def set_epoch(self, epoch):
            self.epoch = epoch

    sampler = Told()
    before = random_states()
    list(Loader(DATA, BatchPlan(8, 1), SingleCommunicator(), sampler=sampler).epoch(7))
    assert same_states(before, random_states())
    assert sampler.epoch == 7


class Wrong(Sampler):
    def __init__(self, length, given):
        self._length, self._given = length, given

    def __len__(self):
        return self._length

    def __iter__(self):
        return iter(self._given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Wrong(3, [1, 2]), r"gave 2 indices in epoch 0, its len\(\) was 3"),
        (Wrong(3, range(9)), r"gave more than 3 indices"),
        (Wrong(2, [1, 40]), r"index 40, the data set has 40 samples"),
        (Wrong(2, [1, -1]), r"index -1"),
        (Wrong(2, [[1, 2], [3]]), r"gave \[1, 2\], not an index"),
        (Wrong(2, [0.5, 1]), r"gave 0.5"),
    ],
)
def test_lists_that_cannot_be_right_are_an_error_on_every_rank(given, words):
    def rank_main(comm):
        list(Loader(DATA, BatchPlan(2, 2), comm, sampler=given).epoch(0))

    for error in run_threads(2, rank_main, catch=True):
        assert isinstance(error, DataError) and not isinstance(error, OtherRankFailed)
        assert re.search(words, str(error)), error


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (DistributedSampler(DATA, num_replicas=2, rank=0), "filled up with samples that are seen twice"),
        (BatchSampler(RandomSampler(DATA), 4, False), "it cuts batches"),
        ((i for i in range(3)), "its length is not known"),
        (5, "not iterable"),
    ],
)
def test_samplers_that_are_refused(sampler, words):
    with pytest.raises(ConfigError, match=words):
        Loader(DATA, BatchPlan(2, 1), SingleCommunicator(), sampler=sampler)


def test_a_resume_goes_on_in_the_same_list_and_refuses_another_kind(tmp_path):
    def fit(steps, folder, sampler):
        trainer = make_trainer(callbacks=[ht.Checkpoint(folder)])
        trainer.fit(make_loader(trainer.comm, sampler=sampler), steps=steps, resume="auto")
        return parameters(trainer)

    weights = [1.0 + i % 3 for i in range(14)]
    straight = fit(7, tmp_path / "straight", WeightedRandomSampler(weights, 10))
    fit(4, tmp_path / "stopped", WeightedRandomSampler(weights, 10))
    with pytest.raises(CheckpointError, match="shuffle = WeightedRandomSampler, this run has SubsetRandomSampler"):
        fit(7, tmp_path / "stopped", SubsetRandomSampler(range(10)))
    assert torch.equal(fit(7, tmp_path / "stopped", WeightedRandomSampler(weights, 10)), straight)
