"""Batches are cut without a remainder: sizes differ by at most one and slices tile."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from hvd_trainer.errors import ConfigError, DataError
from hvd_trainer.plan import BatchPlan, split_evenly
from tests.properties import given, st

# vectors/batch_partition: (global batch, ranks, most in one forward pass) -> rank batches, accumulation, micro-batches.
PARTITIONS = {
    (256, 4, 64): ([64] * 4, 1, [[64]] * 4),
    (256, 4, 32): ([64] * 4, 2, [[32, 32]] * 4),
    (100, 4, 32): ([25] * 4, 1, [[25]] * 4),
    (250, 4, 32): ([63, 63, 62, 62], 2, [[32, 31], [32, 31], [31, 31], [31, 31]]),
    (64, 8, 64): ([8] * 8, 1, [[8]] * 8),
    (96, 2, 20): ([48, 48], 3, [[16, 16, 16]] * 2),
}


@pytest.mark.parametrize("key", PARTITIONS)
def test_partition_vectors(key):
    batch, ranks, most = key
    plan = BatchPlan(batch, ranks, micro_batch=most)
    assert (plan.rank_batches, plan.accumulation, [plan.micro_batches(rank) for rank in range(ranks)]) == PARTITIONS[key]


@given(st.integers(0, 10**9), st.integers(1, 200))
def test_split_evenly(count, num_parts):
    sizes = split_evenly(count, num_parts)
    assert len(sizes) == num_parts
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@st.composite
def plans(draw):
    ranks = draw(st.integers(1, 40))
    batch = draw(st.integers(ranks, 3000))
    return BatchPlan(batch, ranks, micro_batch=draw(st.none() | st.integers(1, 300)))


@given(plans(), st.data())
def test_slices_tile_and_micro_batches_fill_them(plan, data):
    count = data.draw(st.none() | st.integers(1, plan.global_batch))
    at = 0
    for rank in range(plan.num_ranks):
        begin, end = plan.rank_slice(rank, count)
        assert begin == at
        at = end
        micro = plan.micro_batches(rank, count)
        assert sum(micro) == end - begin
        assert all(1 <= size <= (plan.micro_batch or size) for size in micro)
        assert not micro or max(micro) - min(micro) <= 1
        if plan.micro_batch:  # no more forward passes than needed
            assert len(micro) == -(-(end - begin) // plan.micro_batch)
    assert at == (plan.global_batch if count is None else count)
    assert plan.accumulation == max(len(plan.micro_batches(rank)) for rank in range(plan.num_ranks))


@given(plans(), st.integers(1, 10**6))
def test_steps_cover_the_data_once(plan, num_samples):
    steps = plan.steps_per_epoch(num_samples)
    assert (steps - 1) * plan.global_batch < num_samples <= steps * plan.global_batch
    if num_samples >= plan.global_batch:
        assert plan.steps_per_epoch(num_samples, drop_last=True) == num_samples // plan.global_batch
    else:
        with pytest.raises(DataError, match="drop_last=True drops them all"):
            plan.steps_per_epoch(num_samples, drop_last=True)


@given(st.integers(1, 64), st.integers(1, 4096))
def test_without_a_reference_the_ratio_is_the_number_of_ranks(ranks, extra):
    plan = BatchPlan(ranks + extra, ranks)
    assert plan.batch_ratio == ranks
    assert plan.with_reference(plan.reference).batch_ratio == ranks


def test_reference_batch_fixes_the_ratio():
    for ranks in (1, 3, 50):
        assert BatchPlan(150, ranks, reference_batch=50).batch_ratio == 3  # horovod#1542: not by ranks
    assert BatchPlan(64, 2, reference_batch=Fraction(64, 3)).batch_ratio == 3


def test_numpy_integers_are_numbers():
    plan = BatchPlan(np.int64(8), np.int32(2), micro_batch=np.int64(2))
    assert plan == BatchPlan(8, 2, micro_batch=2)
    assert type(plan.global_batch) is int


@pytest.mark.parametrize(
    "arguments",
    [
        {"global_batch": 0}, {"global_batch": -4}, {"global_batch": 8.0}, {"global_batch": True}, {"global_batch": "8"},
        {"global_batch": None}, {"num_ranks": 0}, {"micro_batch": 0}, {"micro_batch": 2.5}, {"reference_batch": 0},
        {"reference_batch": 0.5}, {"reference_batch": True}, {"reference_batch": "64"}, {"global_batch": 1, "num_ranks": 2},
        {"global_batch": torch.tensor(8.7)}, {"global_batch": np.array(8.7)}, {"global_batch": np.True_}, {"global_batch": torch.tensor(True)},
        {"reference_batch": torch.tensor(8.5)}, {"reference_batch": np.True_}, {"reference_batch": np.float64(4)},
    ],
    ids=repr,
)  # fmt: skip
def test_plans_that_cannot_be(arguments):
    name = next(iter(arguments))
    with pytest.raises(ConfigError, match=name):
        BatchPlan(**{"global_batch": 8, "num_ranks": 2, **arguments})


def test_whole_numbers_of_other_libraries():
    plan = BatchPlan(np.int64(8), torch.tensor(2), torch.tensor(4), np.uint8(3))
    assert plan == BatchPlan(8, 2, 4, 3)
    assert {type(getattr(plan, name)) for name in ("global_batch", "num_ranks", "reference_batch", "micro_batch")} == {int}


def test_no_samples():
    with pytest.raises(DataError, match="0 samples"):
        BatchPlan(8, 2).steps_per_epoch(0)
