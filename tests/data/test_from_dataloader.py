"""A DataLoader that the user has: the same epochs, cut for all ranks."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, WeightedRandomSampler

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.errors import ConfigError
from hvd_trainer.plan import BatchPlan
from tests.fake_comm import run_threads

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

DATA = list(range(22))


def indices_of(loader, epoch=0):
    return [index for step in loader.epoch(epoch) for micro in step.indices for index in micro]


def test_in_order_it_gives_the_batches_of_the_dataloader():
    mine = DataLoader(DATA, batch_size=4, collate_fn=tuple, drop_last=True)
    loader = Loader.from_dataloader(mine, SingleCommunicator())
    assert list(loader) == list(mine)
    assert (loader.shuffle, loader.drop_last) == (False, True)


def test_global_batch_is_batch_size_times_ranks_unless_a_plan_says_otherwise():
    def rank_main(comm):
        loader = Loader.from_dataloader(DataLoader(DATA, batch_size=3, shuffle=True), comm, seed=4)
        other = Loader.from_dataloader(DataLoader(DATA, batch_size=3), comm, BatchPlan(8, comm.size))
        return loader.plan, other.plan.global_batch, indices_of(loader)

    ranks = run_threads(2, rank_main)
    assert ranks[0][:2] == (BatchPlan(6, 2, reference_batch=3), 8)
    assert sorted(ranks[0][2] + ranks[1][2]) == DATA
    alone = Loader(DATA, BatchPlan(6, 1), SingleCommunicator(), seed=4)
    assert ranks[0][2][:3] + ranks[1][2][:3] == indices_of(alone)[:6]


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (RandomSampler(DATA), True),
        (RandomSampler(DATA, generator=torch.Generator()), True),
        (RandomSampler(DATA, replacement=True), "RandomSampler"),
        (RandomSampler(DATA, num_samples=7), "RandomSampler"),
        (WeightedRandomSampler([1.0] * 22, 9), "WeightedRandomSampler"),
        ([3, 2, 1], "list"),
    ],
)
def test_kind_of_order(sampler, order):
    loader = Loader.from_dataloader(DataLoader(DATA, batch_size=4, sampler=sampler), SingleCommunicator())
    assert loader.shuffle == order
    assert len(indices_of(loader)) == loader.num_samples == len(sampler)


def test_workers_go_along():
    mine = DataLoader(DATA, batch_size=4, num_workers=3, prefetch_factor=5, worker_init_fn=print)
    workers = Loader.from_dataloader(mine, SingleCommunicator())._workers._loader
    assert (workers.num_workers, workers.prefetch_factor, workers.worker_init_fn.args) == (3, 5, (print,))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


@pytest.mark.parametrize(
    ("dataloader", "words"),
    [
        (DATA, "Loader.from_dataloader\\(list\\)"),
        (DataLoader(Stream(), batch_size=4), "ht.StreamLoader"),
        (DataLoader(DATA, batch_size=None), "a DataLoader made with batch_size="),
        (DataLoader(DATA, batch_sampler=[[1, 2], [3]]), "the batches come from list"),
        (DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, 2, 0)), "seen twice"),
    ],
)
def test_what_is_refused(dataloader, words):
    with pytest.raises(ConfigError, match=words):
        Loader.from_dataloader(dataloader, SingleCommunicator())
