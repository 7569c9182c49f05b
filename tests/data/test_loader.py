"""Each sample exactly once an epoch and the same global batches, whatever the number of ranks."""

import tracemalloc

import numpy as np
import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.errors import CollectiveError, ConfigError, DataError
from hvd_trainer.plan import BatchPlan
from tests.fake_comm import OtherRankFailed, run_threads
from tests.properties import given, settings, st


def steps_of(num_ranks, num_samples, global_batch, epoch=0, first_step=0, **options):
    """What each rank's epoch consists of: [rank][step] -> (global samples, micro-batches of samples, lasts)."""
    micro_batch = options.pop("micro_batch", None)

    def rank_main(comm):
        loader = Loader(list(range(num_samples)), BatchPlan(global_batch, num_ranks, micro_batch=micro_batch), comm, **options)
        found = []
        for number, batch in enumerate(loader.epoch(epoch, first_step)):
            assert batch.step == first_step + number
            micro = list(batch)
            assert [len(m.data) for m in micro] == [m.num_samples for m in micro]
            found.append((batch.global_samples, [m.data.tolist() for m in micro], [m.last for m in micro]))
        assert first_step + len(found) == len(loader) == loader.steps_per_epoch
        return found

    return run_threads(num_ranks, rank_main)


def global_batches(steps):
    return [[sample for rank in ranks for micro in rank[1] for sample in micro] for ranks in zip(*steps)]


@given(st.integers(1, 5), st.integers(1, 60), st.integers(0, 30), st.none() | st.integers(1, 9), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_every_sample_once_in_the_batches_of_one_rank(num_ranks, num_samples, extra, micro_batch, drop_last, shuffle):
    global_batch = num_ranks + extra
    options = {"micro_batch": micro_batch, "drop_last": drop_last and num_samples >= global_batch, "shuffle": shuffle, "seed": 3}
    steps = steps_of(num_ranks, num_samples, global_batch, epoch=2, **options)
    found = global_batches(steps)
    assert found == global_batches(steps_of(1, num_samples, global_batch, epoch=2, **{**options, "micro_batch": None}))
    flat = [sample for batch in found for sample in batch]
    if options["drop_last"]:
        assert len(set(flat)) == len(flat) == num_samples // global_batch * global_batch
        assert all(len(batch) == global_batch for batch in found)
    else:
        assert sorted(flat) == list(range(num_samples))
    if not shuffle:
        assert flat == list(range(len(flat)))
    for ranks in zip(*steps):
        sizes = [sum(map(len, micro)) for _, micro, _ in ranks]
        assert {total for total, _, _ in ranks} == {sum(sizes)}
        assert max(sizes) - min(sizes) <= 1
        for _, micro, lasts in ranks:
            assert lasts == [False] * (len(lasts) - 1) + [True] * bool(lasts)
            assert all(len(m) <= (micro_batch or global_batch) for m in micro)


@given(st.integers(1, 4), st.integers(0, 7))
@settings(max_examples=15)
def test_an_epoch_from_its_middle(num_ranks, first_step):
    """Of 64 samples resumed at 20, every one is seen once (transgenic#59)."""
    everything = steps_of(3, 64, 9, epoch=4)
    rest = steps_of(num_ranks, 64, 9, epoch=4, first_step=first_step)
    assert global_batches(rest) == global_batches(everything)[first_step:]


def test_epochs_differ_and_repeat():
    orders = [sum(global_batches(steps_of(2, 50, 8, epoch=epoch)), []) for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


def test_plain_iteration_is_bare_batches_of_the_chosen_epoch():
    loader = Loader(list(range(10)), BatchPlan(4, 1), SingleCommunicator(), seed=1)
    first = [batch.tolist() for batch in loader]
    assert first == [m.data.tolist() for step in loader.epoch(0) for m in step]
    loader.set_epoch(1)
    assert [batch.tolist() for batch in loader] == [m.data.tolist() for step in loader.epoch(1) for m in step] != first


def test_users_collate_and_getitems():
    class Data:
        def __len__(self):
            return 6

        def __getitem__(self, index):
            raise AssertionError("__getitems__ is faster")

        def __getitems__(self, indices):
            return [(index, index * 10) for index in indices]

    loader = Loader(Data(), BatchPlan(4, 1), SingleCommunicator(), shuffle=False, collate_fn=lambda samples: dict(samples))
    assert list(loader) == [{0: 0, 1: 10, 2: 20, 3: 30}, {4: 40, 5: 50}]


def test_samples_are_fetched_when_they_are_needed():
    fetched = []

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            fetched.append(index)
            return index

    batches = Loader(Data(), BatchPlan(4, 1, micro_batch=2), SingleCommunicator(), shuffle=False).epoch(0)
    micro = iter(next(batches))
    assert fetched == []
    next(micro)
    assert fetched == [0, 1]


class Huge:
    """10^12 samples, and a note of what was asked for."""

    def __init__(self):
        self.fetched = []

    def __len__(self):
        return 10**12

    def __getitem__(self, index):
        self.fetched.append(index)
        return index


def test_large_data_sets_start_at_once():
    """No table, nothing read that is not used: in the middle of the epoch as at its beginning."""
    data = Huge()
    list(Loader(range(64), BatchPlan(4, 1), SingleCommunicator()).epoch(0))  # what is imported or kept once
    tracemalloc.start()
    loader = Loader(data, BatchPlan(256, 1), SingleCommunicator())
    batch = next(loader.epoch(3, first_step=10**9))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000  # bytes; a table would be 8 * 10^12
    assert data.fetched == []
    assert batch.global_samples == 256
    assert len(next(iter(batch)).data) == len(set(data.fetched)) == 256


def test_index_error_of_the_data_set_is_explained():
    class Short(list):
        def __len__(self):
            return 10

    with pytest.raises(DataError, match=r"len\(\) 10 but failed with IndexError"):
        list(Loader(Short(range(5)), BatchPlan(5, 1), SingleCommunicator(), shuffle=False))


def test_what_cannot_be_loaded():
    comm, plan = SingleCommunicator(), BatchPlan(4, 1)
    with pytest.raises(ConfigError, match="map-style"):
        Loader(iter([1, 2]), plan, comm)
    with pytest.raises(DataError, match="0 samples"):
        Loader([], plan, comm)
    with pytest.raises(DataError, match="drop_last"):
        Loader([1, 2], plan, comm, drop_last=True)
    with pytest.raises(ConfigError, match="plan is for 2 ranks, the job has 1"):
        Loader([1, 2], BatchPlan(4, 2), comm)


@pytest.mark.parametrize("what", ["length", "seed"])
def test_ranks_that_disagree(what):
    def rank_main(comm):
        data = list(range(20 + (comm.rank if what == "length" else 0)))
        Loader(data, BatchPlan(4, 2), comm, seed=comm.rank if what == "seed" else 0)

    for error in run_threads(2, rank_main, catch=True):
        assert isinstance(error, CollectiveError) and not isinstance(error, OtherRankFailed)
        assert "the ranks differ in length of the data set, seed" in str(error)


def test_numpy_seed():
    assert Loader(list(range(9)), BatchPlan(4, 1), SingleCommunicator(), seed=np.int64(3)).seed == 3


def test_fill_up_gives_every_rank_the_same_number_of_micro_batches():
    data = [(torch.tensor([float(i)]), {"y": torch.tensor(i)}, "name") for i in range(10)]

    def rank(comm):
        loader = Loader(data, BatchPlan(7, comm.size, micro_batch=1), comm)
        return [[(micro.num_samples, micro.data, micro.last) for micro in step] for step in loader.epoch(0, fill_up=True)]

    ranks = run_threads(3, rank)
    for step in range(2):
        counts = {len(steps[step]) for steps in ranks}
        assert len(counts) == 1
        assert all([last for _, _, last in steps[step]][-1] for steps in ranks)
    filled = [micro for steps in ranks for step in steps for micro in step if micro[0] == 0]
    assert filled
    for _, (x, named, _), _ in filled:
        assert x.shape == (0, 1)
        assert named["y"].shape == (0,)
    assert sum(count for steps in ranks for step in steps for count, _, _ in step) == 10


def test_seeds():
    def order(seed):
        loader = Loader(list(range(9)), BatchPlan(3, 1), SingleCommunicator(), seed=seed)
        assert type(loader.seed) is int  # a checkpoint's manifest is JSON
        return [batch.tolist() for batch in loader]

    assert order(np.int64(5)) == order(5) != order(6)
    for bad in (None, 1.5, "1", True, np.float32(2)):
        with pytest.raises(ConfigError, match=r"Loader\(seed="):
            order(bad)


def test_plain_iteration_refuses_what_would_hang():
    def rank(comm):
        good = Loader(list(range(10)), BatchPlan(4, comm.size), comm)
        assert len(list(good)) == 3
        bad = [
            Loader(list(range(9)), BatchPlan(4, comm.size), comm),  # the last batch has one sample
            Loader(list(range(8)), BatchPlan(5, comm.size, micro_batch=2), comm, drop_last=True),  # 2 and 1 micro-batches
        ]
        for loader in bad:
            with pytest.raises(ConfigError, match=r"loader\.epoch"):
                list(loader)
        assert len(list(Loader(list(range(9)), BatchPlan(4, comm.size), comm, drop_last=True))) == 2

    run_threads(2, rank)
