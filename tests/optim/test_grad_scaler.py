"""Loss scaling whose decisions are the same on all ranks."""

import pytest
import torch

from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.grad_scaler import GradScaler
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads


@pytest.mark.parametrize("unscale_first", [True, False])
def test_a_rank_whose_first_step_has_no_data(unscale_first):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.ones(3))
        opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.1), comm, lr_scaling="none")
        scaler = GradScaler("cpu")
        if comm.rank == 0:
            opt.backward(Weighted((w * 2).sum(), 1), scaler=scaler)
        if unscale_first:
            scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        return w.tolist(), scaler.get_scale()

    results = run_threads(2, rank_main)
    assert results == [([pytest.approx(0.8)] * 3, 65536.0)] * 2
