"""Equal replicas, and proof of it."""

import pytest
import torch

from hvd_trainer.errors import CollectiveError, ReplicaError
from hvd_trainer.optim import replicas
from hvd_trainer.optim.replicas import broadcast_model, digest, replica_check
from tests.fake_comm import run_threads


class Everything(torch.nn.Module):
    """Parameters and buffers of many dtypes and shapes; values depend on the rank."""

    def __init__(self, rank, size=3):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t() + rank)
        self.tied = self.weight
        self.pairs = torch.nn.Parameter(torch.full((size,), complex(rank, 1), dtype=torch.complex64))
        self.sixteen = torch.nn.Parameter(torch.full((1,), 0.5 + rank, dtype=torch.bfloat16))
        self.wide = torch.nn.Parameter(torch.full((2,), 1 / 3 + rank, dtype=torch.float64))
        self.register_buffer("flag", torch.tensor([rank > 0, True, False]))
        self.register_buffer("count", torch.tensor(rank))
        self.register_buffer("empty", torch.empty(0, 2))
        self.register_buffer("hidden", torch.full((2,), float(rank)), persistent=False)


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_broadcast_model(root, chunk_bytes, monkeypatch):
    monkeypatch.setattr(replicas, "CHUNK_BYTES", chunk_bytes)

    def rank_main(comm):
        model = Everything(comm.rank)
        with pytest.raises(ReplicaError):
            replica_check(model, comm)
        broadcast_model(model, comm, root)
        replica_check(model, comm)
        return model

    wanted = Everything(root)
    for model in run_threads(3, rank_main):
        for (name, found), (_, value) in zip(replicas.named_tensors(model), replicas.named_tensors(wanted)):
            assert torch.equal(found, value), name
        assert model.tied is model.weight


def test_check_names_tensor_and_ranks():
    def rank_main(comm):
        model = Everything(0)
        comm.where = "step 12"
        with torch.no_grad():
            if comm.rank in (1, 3):
                model.wide[1] += 1e-16 + 1e-16  # the last bit of 1/3
        with pytest.raises(ReplicaError, match="'wide' on rank 1, 3 differs from rank 0's at step 12"):
            replica_check(model, comm)

    run_threads(4, rank_main)


def test_check_sees_signs_of_zero_and_equal_nans():
    def rank_main(comm, value):
        model = torch.nn.Linear(1, 1, bias=False)
        model.weight.data.fill_(value(comm.rank))
        replica_check(model, comm)

    run_threads(2, lambda comm: rank_main(comm, lambda rank: float("nan")))
    with pytest.raises(ReplicaError):
        run_threads(2, lambda comm: rank_main(comm, lambda rank: -0.0 if rank else 0.0))


def test_models_of_different_shape():
    def rank_main(comm):
        with pytest.raises(CollectiveError, match=r"rank 0: pairs \[3\] complex64; rank 1: pairs \[4\]"):
            broadcast_model(Everything(0, size=3 + comm.rank), comm)

    run_threads(2, rank_main)


def test_digest():
    state = {"step": 3, "buffers": [torch.ones(2), torch.zeros(1)], "lr": 0.1}
    assert digest(state) == digest({"step": 3, "buffers": [torch.ones(2), torch.zeros(1)], "lr": 0.1})
    others = [
        {**state, "step": 4},
        {**state, "lr": 0.1 + 1e-17 + 2e-17},
        {**state, "buffers": [torch.ones(2), torch.tensor([-0.0])]},
        {**state, "buffers": [torch.ones(1, 2), torch.zeros(1)]},
        {**state, "buffers": [torch.ones(2), torch.zeros(1, dtype=torch.int32)]},
        {**state, "more": None},
    ]
    assert digest(state) not in map(digest, others)
