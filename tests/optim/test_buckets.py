"""Where gradients lie: every parameter once, one dtype a bucket, in the order in which backward finishes."""

import torch

from hvd_trainer.optim.buckets import ParamSpec, plan_buckets
from tests.properties import given, st

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.complex64]

specs = st.lists(
    st.builds(
        lambda shape, dtype: ParamSpec("p", tuple(shape), dtype, CPU),
        st.lists(st.integers(0, 7), max_size=3),
        st.sampled_from(DTYPES),
    ),
    min_size=1,
    max_size=30,
)


@given(specs, st.integers(1, 2000))
def test_every_parameter_once_and_packed(params, bucket_bytes):
    buckets = plan_buckets(params, bucket_bytes)
    assert sorted(slot.param for bucket in buckets for slot in bucket.slots) == list(range(len(params)))
    for bucket in buckets:
        at = 0
        for slot in bucket.slots:
            assert (slot.offset, slot.numel) == (at, params[slot.param].wire_numel)
            at += slot.numel
        assert bucket.numel == at
        assert {params[slot.param].wire_dtype for slot in bucket.slots} == {bucket.dtype}
        assert len({params[slot.param].dtype.is_complex for slot in bucket.slots}) == 1
        fits = bucket.numel * bucket.dtype.itemsize <= bucket_bytes
        assert fits or sum(slot.numel > 0 for slot in bucket.slots) == 1 or bucket_bytes < bucket.dtype.itemsize


@given(specs, st.integers(1, 2000))
def test_order_is_that_of_backward(params, bucket_bytes):
    buckets = plan_buckets(params, bucket_bytes)
    for bucket in buckets:
        order = [slot.param for slot in bucket.slots]
        assert order == sorted(order, reverse=True)
    finished = [min(slot.param for slot in bucket.slots) for bucket in buckets]
    assert finished == sorted(finished, reverse=True)


@given(specs)
def test_a_bucket_is_closed_only_when_the_next_would_not_fit(params):
    buckets = plan_buckets(params, 200)
    for dtype in DTYPES:
        same = [bucket for bucket in buckets if params[bucket.slots[0].param].dtype is dtype]
        for bucket, following in zip(same, same[1:]):
            assert (bucket.numel + following.slots[0].numel) * bucket.dtype.itemsize > 200


def test_complex_is_pairs_of_reals():
    spec = ParamSpec("p", (2, 3), torch.complex128, CPU)
    assert (spec.wire_numel, spec.wire_dtype) == (12, torch.float64)
