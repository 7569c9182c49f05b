"""Below real launchers: with workers the samples of one rank without, shards of unequal length, nothing left of an ended job."""

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.plan import BatchPlan
from tests.data.augmented import Augmented
from tests.harness import run_ranks
from tests.rank_start import NO_COMPILER


@pytest.mark.parametrize(
    "launcher",
    [pytest.param("mpirun", marks=pytest.mark.mpi), pytest.param("horovodrun-gloo", marks=[pytest.mark.horovod, pytest.mark.slow])],
)
def test_the_samples_of_one_rank_without_workers(launcher, tmp_path):
    out = tmp_path / "drawn.pt"
    run_ranks(launcher, 2, ["-m", "tests.multi.data_workers", "same", out], timeout_s=150, env=NO_COMPILER).ok()
    loader = Loader(Augmented(), BatchPlan(8, 1), SingleCommunicator(), seed=2)
    alone = [sample for epoch in range(2) for step in loader.epoch(epoch) for micro in step for sample in micro.data.tolist()]
    assert torch.load(out) == sorted(alone)


@pytest.mark.mpi
def test_no_worker_outlives_a_rank_that_is_gone():
    """`run_ranks` looks for processes that are left."""
    result = run_ranks("mpirun", 2, ["-m", "tests.multi.data_workers", "die"], timeout_s=100)
    result.failed()
    assert "leaked" not in result.text, result
