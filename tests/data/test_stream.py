"""Streams: the answer of one rank where all see the same, every sample once where each has a shard, and nobody waits."""

import random

import pytest
import torch
from torch.utils.data import IterableDataset

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.sample_seeds import random_states, same_states
from hvd_trainer.data.stream import StreamLoader
from hvd_trainer.errors import ConfigError, DataError
from hvd_trainer.plan import BatchPlan
from tests.fake_comm import OtherRankFailed, run_threads
from tests.properties import given, settings, st


class Numbers(IterableDataset):
    """begin, begin + 1, ...; notes how often it was asked."""

    def __init__(self, begin, count):
        self.begin, self.count, self.asked = begin, count, 0

    def __iter__(self):
        for i in range(self.count):
            self.asked += 1
            yield self.begin + i


class Saved:
    """Can be put where it was; keeps its place as long as its iterator lives."""

    def __init__(self, begin, count):
        self._begin, self._count, self._at, self._loaded, self.asked = begin, count, 0, 0, 0

    def __iter__(self):
        self._at, self._loaded = self._loaded, 0
        while self._at < self._count:
            self._at += 1
            self.asked += 1
            yield self._begin + self._at - 1

    def state_dict(self):
        return {"at": self._at}

    def load_state_dict(self, state):
        self._loaded = state["at"]


def steps_of(counts, global_batch, epochs=1, first_step=0, micro_batch=None, make=Numbers, **options):
    """[rank][step] -> (step, global samples, samples of the micro-batches, is_last), one count a shard, or one for all."""
    counts = counts if isinstance(counts, list) else [counts]
    num_ranks = options.pop("num_ranks", len(counts))
    sharded = options.get("sharded", False)

    def rank_main(comm):
        stream = make(1000 * comm.rank if sharded else 0, counts[comm.rank if sharded else 0])
        loader = StreamLoader(stream, BatchPlan(global_batch, num_ranks, micro_batch=micro_batch), comm, **options)
        return [
            (step.step, step.global_samples, [micro.data.tolist() for micro in step], step.is_last)
            for epoch in range(epochs)
            for step in loader.epoch(epoch, first_step)
        ]

    return run_threads(num_ranks, rank_main)


def global_batches(ranks):
    return [[sample for rank in step for micro in rank[2] for sample in micro] for step in zip(*ranks, strict=True)]


@given(st.integers(1, 4), st.integers(1, 40), st.integers(0, 12), st.none() | st.integers(1, 4), st.none() | st.integers(1, 5))
@settings(max_examples=25)
def test_the_same_stream_gives_the_batches_of_one_rank(num_ranks, count, extra, micro_batch, steps_per_epoch):
    options = {"epochs": 2, "steps_per_epoch": steps_per_epoch}
    alone = steps_of(count, num_ranks + extra, **options)
    ranks = steps_of(count, num_ranks + extra, num_ranks=num_ranks, micro_batch=micro_batch, **options)
    assert global_batches(ranks) == global_batches(alone)
    assert [step[3] for step in ranks[0]] == [step[3] for step in alone[0]]
    assert sum(step[3] for step in ranks[0]) == 2
    assert [step[1] for step in ranks[-1]] == [len(batch) for batch in global_batches(alone)]
    if steps_per_epoch is None:
        assert sum(global_batches(alone), []) == 2 * list(range(count))


@given(st.lists(st.integers(0, 25), min_size=1, max_size=4), st.integers(0, 9), st.none() | st.integers(1, 3))
@settings(max_examples=25)
def test_shards_of_any_length_every_sample_once(counts, extra, micro_batch):
    if not sum(counts):
        counts = [*counts, 1]
    ranks = steps_of(counts, len(counts) + extra, micro_batch=micro_batch, sharded=True)
    for rank, steps in enumerate(ranks):
        assert [sample for step in steps for micro in step[2] for sample in micro] == list(range(1000 * rank, 1000 * rank + counts[rank]))
        assert [step[3] for step in steps] == [False] * (len(steps) - 1) + [True]
        assert all(len(micro) <= (micro_batch or 99) for step in steps for micro in step[2])
    assert [step[1] for step in ranks[0]] == [len(batch) for batch in global_batches(ranks)]
    assert [step[:2] for step in ranks[0]] == [step[:2] for step in ranks[-1]]


def test_endless_streams_and_passes_that_go_on_through_epochs():
    class Endless:
        def __iter__(self):
            yield from iter(int, 1)

    loader = StreamLoader(Endless(), BatchPlan(4, 1), SingleCommunicator(), steps_per_epoch=3)
    assert len(loader) == len(list(loader)) == 3
    found = steps_of(10, 4, epochs=2, steps_per_epoch=2)  # passes of 4 + 4 + 2
    assert global_batches(found) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]
    assert global_batches(steps_of([5, 2], 4, epochs=2, steps_per_epoch=2, sharded=True)) == [
        [0, 1, 1000, 1001], [2, 3], [4], [0, 1, 1000, 1001],
    ]  # fmt: skip


def test_drop_last():
    assert global_batches(steps_of(10, 4, drop_last=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert global_batches(steps_of([5, 2], 4, drop_last=True, sharded=True)) == [[0, 1, 1000, 1001]]
    for options in ({}, {"steps_per_epoch": 3}):
        with pytest.raises(DataError, match="drop_last=True drops them all"):
            steps_of(3, 4, drop_last=True, **options)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("steps_per_epoch", [None, 4])
@pytest.mark.parametrize("make", [Numbers, Saved])
def test_resume_at_any_step(make, steps_per_epoch, sharded):
    """Drawn again up to there, or put there where the stream can; both give the steps that were left."""

    def loader_of(comm):
        stream = make(1000 * comm.rank if sharded else 0, 13 - 3 * comm.rank if sharded else 26)
        return StreamLoader(stream, BatchPlan(4, comm.size), comm, sharded=sharded, steps_per_epoch=steps_per_epoch)

    def everything(loader, epoch=0, first_step=0):
        for e in range(epoch, 3):
            for step in loader.epoch(e, first_step if e == epoch else 0):
                yield (e, step.step, step.is_last, [m.data.tolist() for m in step]), loader.state_dict()

    def rank_main(comm):
        straight = list(everything(loader_of(comm)))
        for at, (row, state) in enumerate(straight[:-1]):
            epoch, step = (row[0] + 1, 0) if row[2] else (row[0], row[1] + 1)
            loader = loader_of(comm)
            loader.load_state_dict(state)
            rest = everything(loader, epoch, step)
            first = next(rest)
            if make is Saved and step:
                assert loader.stream.asked <= 4 * 2  # and one step ahead
            assert [first[0]] + [row for row, _ in rest] == [row for row, _ in straight[at + 1 :]]
        return len(straight)

    assert min(run_threads(2, rank_main)) >= 12


def test_random_numbers_of_a_stream():
    """A stream that shuffles with the global generators gives every rank the same, and the process's own stay."""

    class Shuffled:
        def __iter__(self):
            buffer = list(range(10))
            while buffer:
                yield [buffer.pop(random.randrange(len(buffer))), random.random()]

    def found(first_step=0, epoch=0):
        loader = StreamLoader(Shuffled(), BatchPlan(3, 1), SingleCommunicator(), seed=6)
        return [m.data for step in loader.epoch(epoch, first_step) for m in step]

    before = random_states()
    straight = [[x.tolist() for x in batch] for batch in found()]
    assert same_states(before, random_states())
    random.random()
    assert [[x.tolist() for x in batch] for batch in found(first_step=2)] == straight[2:]
    assert [[x.tolist() for x in batch] for batch in found(epoch=1)] != straight


def test_set_epoch_fill_up_and_plain_iteration():
    class Told(Numbers):
        def set_epoch(self, epoch):
            self.begin = 100 * epoch

    loader = StreamLoader(Told(0, 3), BatchPlan(2, 1), SingleCommunicator())
    loader.set_epoch(2)
    assert [batch.tolist() for batch in loader] == [[200, 201], [202]]

    def rank_main(comm):
        loader = StreamLoader(range([9, 1][comm.rank]), BatchPlan(4, 2, micro_batch=1), comm, sharded=True)
        return [[(micro.num_samples, tuple(micro.data.shape), micro.last) for micro in step] for step in loader.epoch(0, fill_up=True)]

    first, second = run_threads(2, rank_main)
    assert [len(step) for step in first] == [len(step) for step in second] == [2, 2, 2, 2, 1]
    assert second[1] == [(0, (0,), False), (0, (0,), True)]


def test_ranks_that_should_see_the_same_and_do_not():
    def rank_main(comm):
        list(StreamLoader(range(9 - comm.rank), BatchPlan(4, 2), comm).epoch(0))

    for error in run_threads(2, rank_main, catch=True):
        assert isinstance(error, DataError) and not isinstance(error, OtherRankFailed)
        assert "after 8 the ranks have 1, 0 more" in str(error) and "sharded=True" in str(error)


def test_what_cannot_be_streamed():
    comm, plan = SingleCommunicator(), BatchPlan(4, 1)
    with pytest.raises(ConfigError, match="an iterable of samples"):
        StreamLoader(5, plan, comm)
    with pytest.raises(ConfigError, match="plan is for 2 ranks"):
        StreamLoader([1], BatchPlan(4, 2), comm)
    for steps in (0, 1.5, True):
        with pytest.raises(ConfigError, match="steps_per_epoch="):
            StreamLoader([1], plan, comm, steps_per_epoch=steps)
    with pytest.raises(DataError, match="no sample in pass 1"):
        list(StreamLoader([], plan, comm))
    used_up = StreamLoader((i for i in range(3)), plan, comm)
    assert len(list(used_up)) == 1
    with pytest.raises(DataError, match="used up after one pass"):
        list(used_up.epoch(1))
    with pytest.raises(TypeError, match="length of a stream is not known"):
        len(used_up)
    for compute in (lambda n: 2 * n, lambda n: n / 2, lambda n: 5 >= n, int):
        with pytest.raises(ConfigError, match="not known"):
            compute(used_up.steps_per_epoch)


def test_a_step_that_has_no_sample_on_a_rank_is_still_a_step():
    assert torch.tensor([len(step[2]) for step in steps_of([6, 0], 2, sharded=True)[1]]).eq(0).all()
