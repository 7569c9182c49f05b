"""Augmentation is a function of (seed, epoch, index): the same however the samples are dealt out."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.data.sample_seeds import draws_nothing, random_states, same_states, seed_all, seed_key
from hvd_trainer.plan import BatchPlan
from tests.data.augmented import Augmented, tell_threads
from tests.fake_comm import run_threads

PINNED_KEY = 15793235383387715774
PINNED = (0.29371823176557244, 0.9134435351150437, 0.3030126732110684)


def samples_of(num_ranks, dataset, epoch=0, first_step=0, micro_batch=None, **options):
    """index -> sample, over all ranks. Ranks are threads with one random state, so they load one after the other."""
    plan = BatchPlan(8, num_ranks, micro_batch=micro_batch)
    loaders = run_threads(num_ranks, lambda comm: Loader(dataset, plan, comm, seed=3, **options))
    batches = [micro.data for loader in loaders for step in loader.epoch(epoch, first_step) for micro in step]
    return {int(sample[0]): sample.tolist() for batch in batches for sample in batch}


def test_the_same_for_any_ranks_micro_batches_and_after_a_resume():
    straight = samples_of(1, Augmented())
    assert len(straight) == 30
    for column in (1, 2, 3):
        assert len({sample[column] for sample in straight.values()}) == 30
    for num_ranks, micro_batch in ((1, 3), (2, None), (3, 1), (4, 2)):
        assert samples_of(num_ranks, Augmented(), micro_batch=micro_batch) == straight
    rest = samples_of(2, Augmented(), first_step=2)
    assert len(rest) == 14
    assert rest.items() <= {index: sample for index, sample in straight.items()}.items()


def test_other_epochs_and_seeds_draw_other_numbers():
    first, second = samples_of(1, Augmented(), epoch=0), samples_of(1, Augmented(), epoch=1)
    assert not {sample[1] for sample in first.values()} & {sample[1] for sample in second.values()}


@pytest.mark.parametrize("wrap", [lambda data: Subset(data, range(30)), lambda data: data], ids=["Subset", "own"])
def test_fetched_at_once_and_random(wrap):
    """`__getitems__` that draws (torch's Subset has one for every data set) is called for each sample alone."""

    class AtOnce(Augmented):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    assert samples_of(2, wrap(AtOnce()), micro_batch=3) == samples_of(1, Augmented())


def test_states_of_the_process_are_not_disturbed():
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(5)
    before = random_states()
    loader = Loader(Augmented(), BatchPlan(8, 1), SingleCommunicator(), collate_fn=tell_threads)
    batches = list(loader)
    assert same_states(before, random_states())
    assert len({drawn for _, drawn, _ in batches}) == len(batches)  # the collate function's draws too
    assert [drawn for _, drawn, _ in loader] == [drawn for _, drawn, _ in batches]
    with pytest.raises(ZeroDivisionError):
        list(Loader(Augmented(), BatchPlan(8, 1), SingleCommunicator(), collate_fn=lambda samples: 1 / 0))
    assert same_states(before, random_states())


def test_every_draw_is_seen():
    for draw in (random.random, np.random.rand, lambda: torch.rand(1), lambda: [np.random.rand() for _ in range(312)]):
        seed_all(1, 2)
        before = random_states()
        draw()
        assert not same_states(before, random_states())


def test_generators_do_not_share_a_stream():
    """numpy's legacy generator and torch's are the same algorithm: with one seed their first words would be equal."""
    seed_all(seed_key(0, 0), 0)
    first = [np.random.randint(0, 2**32, dtype=np.uint64) >> np.uint64(8) for _ in range(50)]
    second = [int(word) for word in (torch.rand(50) * 2**24).long()]
    assert not set(map(int, first)) & set(second)


def test_numbers_of_neighbours_are_independent():
    firsts = np.array([(seed_all(seed_key(1, 2), index), random.random(), np.random.rand(), torch.rand(()).item())[1:] for index in range(4000)])
    assert (np.abs(firsts.mean(0) - 0.5) < 5 / np.sqrt(12 * 4000)).all()
    for column in firsts.T:
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < 5 / np.sqrt(4000)
    assert np.abs(np.corrcoef(firsts.T) - np.eye(3)).max() < 5 / np.sqrt(4000)


def test_pinned():
    """A resumed run goes on with these numbers: they must never change."""
    assert seed_key(0, 0) == PINNED_KEY
    seed_all(seed_key(0, 0), 7)
    assert (random.random(), np.random.rand(), torch.rand((), dtype=torch.float64).item()) == PINNED


def test_where_nothing_can_be_drawn():
    tensors = TensorDataset(torch.zeros(3))
    assert all(map(draws_nothing, ([1], (1,), range(3), tensors, Subset(tensors, [0]), ConcatDataset([tensors, Subset([1], [0])]))))

    class Mine(TensorDataset):
        pass

    assert not any(map(draws_nothing, (Augmented(), Mine(torch.zeros(3)), Subset(Augmented(), [0]), ConcatDataset([tensors, Augmented()]))))


def test_evaluation_draws_the_same_every_time_on_any_number_of_ranks():
    def metrics(model, data):
        return {"drawn": ht.Weighted(data[:, 1:].sum(), len(data))}

    comm = SingleCommunicator()
    first = ht.evaluate(torch.nn.Identity(), Augmented(), metrics, comm, batch_size=7)
    torch.rand(3)
    assert ht.evaluate(torch.nn.Identity(), Augmented(), metrics, comm, batch_size=30) == pytest.approx(first, rel=1e-12)
