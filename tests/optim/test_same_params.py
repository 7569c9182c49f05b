"""Ranks whose parameters differ are told so, all of them, before anything is sent."""

import pytest
import torch

from hvd_trainer.errors import CollectiveError
from hvd_trainer.optim.buckets import ParamSpec
from hvd_trainer.optim.same_params import check_same_params
from tests.fake_comm import run_threads


def spec(name="p0", shape=(2,), dtype=torch.float32, strides=()):
    return ParamSpec(name, shape, dtype, torch.device("cpu"), 0, strides)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ([spec(), spec("p1")], "rank 1 has 2 trainable tensors, rank 0 has 1"),
        ([spec(shape=(3,))], r"rank 0: p0 \[2\] float32; rank 1: p0 \[3\] float32"),
        ([spec(dtype=torch.float64)], r"rank 0: p0 \[2\] float32; rank 1: p0 \[2\] float64"),
        ([spec("weight")], r"rank 0: p0 \[2\] float32; rank 1: weight \[2\] float32"),
        ([spec(strides=(2,))], r"rank 1: p0 \[2\] float32 strides \[2\]"),
    ],
)
def test_ranks_with_other_parameters(other, words):
    def rank_main(comm):
        with pytest.raises(CollectiveError, match=words):
            check_same_params(other if comm.rank == 1 else [spec()], comm, "r")

    run_threads(3, rank_main)


def test_the_same_on_all_ranks():
    assert run_threads(2, lambda comm: check_same_params([spec(), spec("p1")], comm, "r")) == [None, None]
