"""What any Communicator must do. As a program, on every rank: python -m tests.comm.contract --engine E --backend B

A check that fails raises; the guard then names the rank and the check, and ends the job.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

import torch

from hvd_trainer.comm.api import OPS, Communicator
from hvd_trainer.comm.connect import init
from hvd_trainer.comm.derived import agree, any_rank
from hvd_trainer.errors import CollectiveError

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
)
FOLD = {"sum": lambda x: x.sum(0), "max": lambda x: x.amax(0), "min": lambda x: x.amin(0)}


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Small whole numbers, which every dtype adds exactly, different on each rank."""
    gen = torch.Generator().manual_seed(1000 + rank)
    return torch.randint(0, 2 if dtype is torch.bool else 20, shape, generator=gen).to(dtype)


def expected(comm: Communicator, shape: tuple[int, ...], dtype: torch.dtype, op: str) -> torch.Tensor:
    every = torch.stack([values(rank, shape, dtype).double() for rank in range(comm.size)])
    return FOLD[op](every).to(dtype)  # a sum of bools is "any", as for torch: 2.0 is True


def assert_equal(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype and got.shape == want.shape, (
        f"{got.dtype} {got.shape}, not {want.dtype} {want.shape}"
    )
    assert torch.equal(got.cpu(), want), f"{got}, not {want}"


def same_everywhere(comm: Communicator, tensor: torch.Tensor) -> None:
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    assert len(set(comm.gather_objects(data))) == 1, "the bits differ between ranks"


def raises(function, *words: str) -> str:
    """The message of the CollectiveError that `function` raises."""
    try:
        function()
    except CollectiveError as error:
        assert all(word in str(error) for word in words), f"{words} not all in: {error}"
        return str(error)
    raise AssertionError("no CollectiveError")


def halves(comm: Communicator) -> Iterator[torch.dtype]:
    """Each 16-bit dtype, each way in which it can travel."""
    try:
        for comm.half_wire in ("wide", "narrow"):
            yield from (torch.float16, torch.bfloat16)
    finally:
        comm.half_wire = "auto"


def check_first_call_in_inference_mode(comm: Communicator) -> None:
    """The first one: what an engine keeps from its first call must serve outside of inference mode too."""
    for dtype in halves(comm):
        mine = values(comm.rank, (9,), dtype).to(comm.device)
        with torch.inference_mode():
            inside = comm.allreduce_(mine.clone(), "inference").wait()
        comm.allreduce_(mine, "inference").wait()
        assert_equal(mine, expected(comm, (9,), dtype, "sum"))
        assert_equal(inside, mine.cpu())


def check_every_dtype_and_op(comm: Communicator) -> None:
    for dtype in DTYPES:
        for op in OPS:
            tensor = values(comm.rank, (3, 5), dtype).to(comm.device)
            result = comm.allreduce_(tensor, f"{dtype}.{op}", op).wait()
            assert result is tensor
            assert_equal(tensor, expected(comm, (3, 5), dtype, op))


def check_empty_and_zero_dimensional(comm: Communicator) -> None:
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool):
        for shape in ((), (0,), (3, 0, 2), (1,)):
            tensor = values(comm.rank, shape, dtype).to(comm.device)
            comm.allreduce_(tensor, "small").wait()
            assert_equal(tensor, expected(comm, shape, dtype, "sum"))
            comm.broadcast_(tensor, comm.size - 1)
            assert tensor.shape == shape


def check_nan_is_not_lost(comm: Communicator) -> None:
    """A NaN on any one rank makes sum, max and min NaN on all, in any dtype."""
    for op in OPS:
        for dtype in (torch.float32, torch.float16):
            for bad in range(comm.size):
                tensor = torch.tensor([1.0, 2.0, 3.0], dtype=dtype, device=comm.device)
                if comm.rank == bad:
                    tensor[1] = float("nan")
                found = comm.allreduce_(tensor, "nan", op).wait()
                assert found.isnan().tolist() == [False, True, False], f"{op} {dtype}, NaN on rank {bad}: {found}"


def check_not_contiguous(comm: Communicator) -> None:
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool):
        mine = values(comm.rank, (2, 4, 6, 8), dtype).to(comm.device)
        for name, view in (
            ("transposed", lambda t: t.transpose(0, 3)),
            ("strided", lambda t: t[:, ::2, :, 1::3]),
            ("channels_last", lambda t: t.contiguous(memory_format=torch.channels_last)),
            ("column", lambda t: t[0, 0, :, 0]),
        ):
            tensor = view(mine.clone())
            strides, last = tensor.stride(), mine[1, 3].clone()
            comm.allreduce_(tensor, name).wait()
            assert_equal(tensor, view(expected(comm, (2, 4, 6, 8), dtype, "sum")))
            assert tensor.stride() == strides and torch.equal(mine[1, 3], last)
            tensor = view(mine.clone())
            comm.broadcast_(tensor, 0, name)
            assert_equal(tensor, view(values(0, (2, 4, 6, 8), dtype)))


def check_a_slice_leaves_its_neighbours(comm: Communicator) -> None:
    whole = torch.full((10,), float(comm.rank), device=comm.device)
    comm.allreduce_(whole[2:5], "slice").wait()
    total = float(sum(range(comm.size)))
    r = float(comm.rank)
    assert whole.tolist() == [r, r, total, total, total, r, r, r, r, r]


def check_several_in_flight(comm: Communicator) -> None:
    shapes = [(7,), (3, 3), (0,), (), (1000,), (2, 5)]
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.float32, torch.bool]
    for seed in range(4):
        tensors = [values(comm.rank, s, d).to(comm.device) for s, d in zip(shapes, dtypes, strict=True)]
        pending = [comm.allreduce_(t, f"flight.{i}") for i, t in enumerate(tensors)]
        order = list(range(len(pending)))
        random.Random(seed * 100 + comm.rank).shuffle(order)  # each rank waits in its own order
        for i in order:
            pending[i].wait()
            assert pending[i].done() and pending[i].wait() is tensors[i]
        for tensor, shape, dtype in zip(tensors, shapes, dtypes, strict=True):
            assert_equal(tensor, expected(comm, shape, dtype, "sum"))


def check_other_collectives_between(comm: Communicator) -> None:
    tensor = values(comm.rank, (50,), torch.float32).to(comm.device)
    pending = comm.allreduce_(tensor, "outer")
    comm.barrier()
    assert comm.gather_objects(comm.rank) == list(range(comm.size))
    pending.wait()
    assert_equal(tensor, expected(comm, (50,), torch.float32, "sum"))


def check_same_bits_and_close(comm: Communicator) -> None:
    for dtype, tolerance in (
        (torch.float32, 1e-6),
        (torch.float64, 1e-14),
        (torch.float16, 2e-3),
        (torch.bfloat16, 1e-2),
    ):
        for count in (1, 17, 1000, 100_003):
            every = [torch.randn(count, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(comm.size)]
            tensor = every[comm.rank].clone().to(comm.device)
            comm.allreduce_(tensor, f"bits.{dtype}.{count}").wait()
            same_everywhere(comm, tensor)
            want = torch.stack(every).double().sum(0)
            assert (tensor.cpu().double() - want).abs().max() <= tolerance * max(1.0, want.abs().max().item())


def check_half_is_summed_in_single(comm: Communicator) -> None:
    tensor = torch.full((4,), 40000.0, dtype=torch.float16, device=comm.device) / comm.size
    comm.allreduce_(tensor, "half").wait()
    assert torch.isfinite(tensor).all() and (tensor - 40000).abs().max() <= 64
    if comm.size > 2:  # 1 + eps/2 + eps/2 keeps the eps only if it is rounded once
        eps = torch.finfo(torch.bfloat16).eps
        tensor = torch.tensor(
            [1.0 if comm.rank == 0 else eps / 2 if comm.rank < 3 else 0.0], dtype=torch.bfloat16, device=comm.device
        )
        comm.allreduce_(tensor, "once").wait()
        assert tensor.item() == 1 + eps


def check_halves_of_any_size(comm: Communicator) -> None:
    for dtype in halves(comm):
        for shape in ((), (0,), (1,), (2,), (3,), (5,), (2, 0), (7, 11), (300_007,)):
            mine = values(comm.rank, shape, dtype).to(comm.device)
            tensor = comm.allreduce_(mine, "half").wait()
            assert tensor is mine
            assert_equal(tensor, expected(comm, shape, dtype, "sum"))
        mine = values(comm.rank, (6, 4, 10), dtype).to(comm.device)
        view = mine.transpose(0, 2)[1::2]
        comm.allreduce_(view, "half.view").wait()
        assert_equal(view, expected(comm, (6, 4, 10), dtype, "sum").transpose(0, 2)[1::2])
        assert torch.equal(mine[:, :, 0].cpu(), values(comm.rank, (6, 4, 10), dtype)[:, :, 0])
        parameter = torch.nn.Parameter(values(comm.rank, (70, 3), dtype).to(comm.device))
        comm.allreduce_(parameter, "half.parameter", scale=0.5).wait()
        assert_equal(parameter.detach(), expected(comm, (70, 3), dtype, "sum") / 2)


def check_a_mean_of_halves_that_no_half_can_sum(comm: Communicator) -> None:
    for dtype in halves(comm):
        tensor = torch.full((1000,), 40000.0, dtype=dtype, device=comm.device)
        one = tensor[0].item()  # the next bfloat16 is 39936
        comm.allreduce_(tensor, "mean", scale=1 / comm.size).wait()
        assert (tensor == one).all(), f"{tensor[0]} on the way {comm.half_wire}"
        comm.allreduce_(tensor, "sum").wait()
        fits = comm.size * one <= torch.finfo(dtype).max
        assert tensor.isfinite().all() if fits else (tensor == float("inf")).all()


def check_halves_that_are_not_finite(comm: Communicator) -> None:
    inf, nan = float("inf"), float("nan")
    for dtype in halves(comm):
        for bad in range(comm.size):
            special = [nan, inf, -inf, 1.0] if comm.rank == bad else [1.0, 1.0, 1.0, -1.0]
            tensor = torch.tensor(special, dtype=dtype, device=comm.device).repeat(3)
            found = comm.allreduce_(tensor, "special").wait().view(3, 4)
            assert found[:, 0].isnan().all() and (found[:, 1] == inf).all() and (found[:, 2] == -inf).all()
            assert (found[:, 3] == 2.0 - comm.size).all()
            same_everywhere(comm, tensor)
        if comm.size > 1:
            tensor = torch.full((5,), [inf, -inf, 1.0][min(comm.rank, 2)], dtype=dtype, device=comm.device)
            assert comm.allreduce_(tensor, "opposite").wait().isnan().all()


def check_halves_are_rounded_once(comm: Communicator) -> None:
    """Both ways give the float32 sum, scaled, rounded once; in shares it is made in the order of the ranks."""
    for dtype in halves(comm):
        every = [torch.randn(4099, generator=torch.Generator().manual_seed(r)).to(dtype) for r in range(comm.size)]
        total = every[0].float()
        for other in every[1:]:
            total += other.float()
        tensor = every[comm.rank].clone().to(comm.device)
        comm.allreduce_(tensor, "rounded", scale=0.37).wait()
        same_everywhere(comm, tensor)
        want = (total * 0.37).to(dtype)
        if comm.half_wire == "narrow" and comm.device.type == "cpu" or comm.size <= 2:
            assert_equal(tensor, want)
        eps = torch.finfo(dtype).eps
        assert ((tensor.cpu().double() - want.double()).abs() <= eps * want.double().abs() + 1e-6).all()


def check_a_tensor_that_goes_in_several_calls(comm: Communicator) -> None:
    for dtype in (torch.float32, torch.int64, torch.bfloat16):
        mine = values(comm.rank, (1_200_007,), dtype).to(comm.device)
        comm.allreduce_(mine, "large").wait()
        assert_equal(mine, expected(comm, (1_200_007,), dtype, "sum"))


def check_memory_that_was_reduced_before(comm: Communicator) -> None:
    """An engine may remember it; other tensors over the same memory are still what they are."""
    ones = torch.ones(6, device=comm.device)
    for _ in range(2):
        comm.allreduce_(ones.fill_(1), "again").wait()
        assert (ones == comm.size).all()
    comm.allreduce_(ones.fill_(comm.rank), "again", "max").wait()
    assert (ones == comm.size - 1).all()
    comm.allreduce_(ones.fill_(1), "again", scale=0.5).wait()
    assert (ones == comm.size / 2).all()
    counts = ones.view(torch.int32)
    comm.allreduce_(counts.fill_(1), "again").wait()
    assert (counts == comm.size).all()
    whole = torch.ones(12, device=comm.device)
    comm.allreduce_(whole[:6], "again").wait()
    comm.allreduce_(whole.fill_(1)[::2], "again").wait()  # from the same address, as many
    assert whole.tolist() == [float(comm.size), 1.0] * 6
    first = comm.allreduce_(ones.fill_(1), "again")
    if comm.size > 1:
        raises(lambda: comm.allreduce_(ones, "again"), "under way already")
    first.wait()


def check_sums_over_several_nodes(comm: Communicator) -> None:
    """Engine mpi, on ranks that pretend to be on nodes of their own: any size, and in rank order where a share is large."""
    if comm.engine != "mpi":
        return
    from hvd_trainer.comm.mpi_shares import SHARE_BYTES
    from hvd_trainer.comm.mpi_sums import MpiSums

    sums = MpiSums(comm._mpi, comm._comm, between_nodes=True)
    for dtype in (torch.float32, torch.float64, torch.int64):
        enough = comm.size * SHARE_BYTES // dtype.itemsize
        for numel in (1, enough - 1, enough, enough + 1, 3 * enough + 7, 600_011):
            mine = values(comm.rank, (numel,), dtype)
            sums.reduce_(mine, "sum", 0.5 if dtype.is_floating_point else 1.0, False)
            total = expected(comm, (numel,), dtype, "sum")
            assert_equal(mine, total / 2 if dtype.is_floating_point else total)
        mine = values(comm.rank, (enough, 2), dtype).t()[:, 1:]
        sums.reduce_(mine, "max", 1.0, False)
        assert_equal(mine, expected(comm, (enough, 2), dtype, "max").t()[:, 1:])
    mine = torch.full((comm.size * SHARE_BYTES,), [1e16, 1.0, -1e16, 1.0][comm.rank], dtype=torch.float64)
    sums.reduce_(mine, "sum", 1.0, False)
    if comm.size == 3:
        assert (mine == 0.0).all(), mine[0]  # ((1e16 + 1) - 1e16), and not 1


def check_halves_waited_for_in_any_order(comm: Communicator) -> None:
    """Sums of two rounds: a rank that waits for one must not hold up a rank that waits for another."""
    dtypes = (torch.float16, torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for seed, _ in enumerate(halves(comm)):
        tensors = [values(comm.rank, (40 + i,), d).to(comm.device) for i, d in enumerate(dtypes)]
        pending = [comm.allreduce_(t, f"order.{i}") for i, t in enumerate(tensors)]
        order = list(range(len(pending)))
        random.Random(seed * 100 + comm.rank).shuffle(order)
        for i in order[:2]:
            pending[i].wait()
        assert comm.gather_objects(comm.rank) == list(range(comm.size))
        for i in order[2:]:
            pending[i].wait()
        for i, (tensor, dtype) in enumerate(zip(tensors, dtypes)):
            assert_equal(tensor, expected(comm, (40 + i,), dtype, "sum"))

        half, single = values(comm.rank, (9,), torch.float16).to(comm.device), torch.ones(9, device=comm.device)
        first = comm.allreduce_(half, "half")
        if comm.rank % 2:
            first.wait()
            comm.allreduce_(single, "single").wait()
        else:
            comm.allreduce_(single, "single").wait()
            first.wait()
        assert first.done() and (single == comm.size).all()
        assert_equal(half, expected(comm, (9,), torch.float16, "sum"))


def check_scale(comm: Communicator) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for shape in ((), (0,), (3, 5), (200_003,)):
            tensor = values(comm.rank, shape, dtype).to(comm.device)
            comm.allreduce_(tensor, "scaled", scale=0.25).wait()
            assert_equal(tensor, expected(comm, shape, torch.float64, "sum").mul(0.25).to(dtype))
        mine = values(comm.rank, (4, 6), dtype).to(comm.device)
        comm.allreduce_(mine[:, ::2], "scaled.view", scale=0.25).wait()
        assert_equal(mine[:, ::2], (expected(comm, (4, 6), torch.float64, "sum") / 4).to(dtype)[:, ::2])
        assert_equal(mine[:, 1::2], values(comm.rank, (4, 6), dtype)[:, 1::2])
    whole = torch.ones(2, dtype=torch.int64, device=comm.device)
    raises(lambda: comm.allreduce_(whole, "w", scale=0.5), "scale=0.5", "int64", "sums of floats")
    raises(lambda: comm.allreduce_(whole.double(), "w", "max", scale=0.5), "op='max'", "scale=0.5")


def check_broadcast(comm: Communicator) -> None:
    for root in range(comm.size):
        for dtype in (*DTYPES, torch.int8, torch.int16):
            for shape in ((3, 5), (), (0,)):
                tensor = values(comm.rank, shape, dtype).to(comm.device)
                assert comm.broadcast_(tensor, root, f"b.{dtype}") is tensor
                assert_equal(tensor, values(root, shape, dtype))
    nan = (
        torch.tensor([float("nan"), -0.0, float("inf")], device=comm.device)
        if comm.rank == 0
        else torch.zeros(3, device=comm.device)
    )
    comm.broadcast_(nan, 0)
    same_everywhere(comm, nan)
    parameter = torch.nn.Parameter(values(comm.rank, (6, 2), torch.float32).to(comm.device))
    comm.broadcast_(parameter, 0)
    assert_equal(parameter.detach(), values(0, (6, 2), torch.float32))
    for root in (-1, comm.size):
        raises(
            lambda root=root: comm.broadcast_(torch.zeros(1, device=comm.device), root), "root", f"0 .. {comm.size - 1}"
        )


def check_objects(comm: Communicator) -> None:
    mine = {"rank": comm.rank, "text": "x" * comm.rank, "tensor": torch.arange(comm.rank)}
    every = comm.gather_objects(mine)
    assert [e["rank"] for e in every] == list(range(comm.size)) and [len(e["tensor"]) for e in every] == list(
        range(comm.size)
    )
    assert comm.gather_objects(None) == [None] * comm.size
    big = bytes(3_000_000 + comm.rank)
    assert [len(b) for b in comm.gather_objects(big)] == [3_000_000 + r for r in range(comm.size)]
    for root in range(comm.size):
        assert comm.broadcast_object(("from", comm.rank, big) if comm.rank == root else None, root) == (
            "from",
            root,
            bytes(len(big) - comm.rank + root),
        )
    assert comm.broadcast_object(None) is None


def check_a_name_in_flight_twice(comm: Communicator) -> None:
    first = values(comm.rank, (2,), torch.float32).to(comm.device)
    pending = comm.allreduce_(first, "twice")
    raises(lambda: comm.allreduce_(first.clone(), "twice"), "'twice'", "under way")
    pending.wait()
    comm.allreduce_(first, "twice").wait()


def check_refused_tensors(comm: Communicator) -> None:
    zeros = torch.zeros(2, device=comm.device)
    raises(lambda: comm.allreduce_(zeros, "x", "mean"), "op='mean'", "sum, max, min")
    raises(
        lambda: comm.allreduce_(torch.zeros(2, dtype=torch.complex64, device=comm.device), "c"),
        "complex64",
        "dtype one of",
    )
    raises(lambda: comm.allreduce_(torch.zeros(1, device=comm.device).expand(4), "e"), "expanded", "contiguous()")
    raises(lambda: comm.allreduce_(torch.zeros(3, 3, device=comm.device).to_sparse(), "s"), "sparse", "to_dense")
    if comm.device.type == "cpu":
        raises(lambda: comm.allreduce_(torch.zeros(2, device="meta"), "m"), "meta", "cpu")
    for nothing, words in ((None, "None"), ([zeros], "a list"), (1.0, "a float"), (zeros.cpu().numpy(), "a ndarray")):
        raises(lambda nothing=nothing: comm.allreduce_(nothing, "n"), f"allreduce_ 'n': {words}", "a torch.Tensor", "one call for each")
        raises(lambda nothing=nothing: comm.allreduce_(nothing, "n", "max"), words)
        raises(lambda nothing=nothing: comm.broadcast_(nothing, 0, "n"), f"broadcast_ 'n': {words}", "a torch.Tensor")
    comm.allreduce_(zeros, "x").wait()  # what was refused has left nothing behind


def check_parameters(comm: Communicator) -> None:
    """And what a graph has made of them: the values are reduced, the graph does not change."""
    for op in OPS:
        for dtype in (torch.float32, torch.float16):
            parameter = torch.nn.Parameter(values(comm.rank, (3, 4), dtype).to(comm.device))
            doubled = parameter * 2
            for tensor, factor in ((parameter, 1), (doubled, 2)):
                made_by = tensor.grad_fn
                assert comm.allreduce_(tensor, f"p.{op}", op).wait() is tensor
                assert_equal(tensor.detach(), factor * expected(comm, (3, 4), dtype, op))
                assert tensor.requires_grad and tensor.grad_fn is made_by
    spoilt = torch.nn.Parameter(torch.full((2,), float("nan") if comm.rank == 0 else 1.0, device=comm.device))
    assert comm.allreduce_(spoilt, "p.nan", "max").wait().isnan().all()


def check_checked_mode(comm: Communicator) -> None:
    if comm.size == 1:
        return
    odd = comm.rank == comm.size - 1  # the rank that asks for something else
    last = f"rank {comm.size - 1}: "

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=comm.device)

    was, comm.checked, comm.where = comm.checked, True, "step 7"
    try:
        start = "rank 0: allreduce 'g' shape [2, 3] float32 sum"
        raises(
            lambda: comm.allreduce_(zeros(2, 4 if odd else 3), "g"),
            start,
            f"{last}allreduce 'g' shape [2, 4] float32 sum",
            "step 7",
        )
        other = torch.float64 if odd else torch.float32
        raises(
            lambda: comm.allreduce_(zeros(2, 3, dtype=other), "g"), start, f"{last}allreduce 'g' shape [2, 3] float64"
        )
        raises(lambda: comm.allreduce_(zeros(2, 3), "h" if odd else "g"), start, f"{last}allreduce 'h'")
        raises(
            lambda: comm.allreduce_(zeros(2, 3), "g", "max" if odd else "sum"),
            start,
            f"{last}allreduce 'g' shape [2, 3] float32 max",
        )
        raises(
            lambda: comm.allreduce_(zeros(2, 3), "g", scale=0.5 if odd else 1.0),
            start,
            f"{last}allreduce 'g' shape [2, 3] float32 sum times 0.5",
        )
        raises(lambda: comm.barrier() if odd else comm.allreduce_(zeros(2, 3), "g"), start, f"{last}barrier")
        raises(lambda: comm.broadcast_(zeros(1), int(odd)), "rank 0: broadcast", f"{last}broadcast")
        raises(
            lambda: comm.gather_objects(1) if odd else comm.broadcast_object(1),
            "broadcast_object",
            f"{last}gather_objects",
        )
        agreed = zeros(2) + comm.rank
        comm.allreduce_(agreed, "g").wait()
        assert agreed.tolist() == [float(sum(range(comm.size)))] * 2
    finally:
        comm.checked = was


def check_topology(comm: Communicator) -> None:
    every = comm.gather_objects(comm.topology)
    assert [t.rank for t in every] == list(range(comm.size)) and {t.size for t in every} == {comm.size}
    assert {t.num_nodes for t in every} == {len({t.node for t in every})}
    for node in range(comm.num_nodes):
        there = [t for t in every if t.node == node]
        assert [t.local_rank for t in there] == list(range(len(there))) and {t.local_size for t in there} == {
            len(there)
        }
    assert comm.topology == every[comm.rank]
    assert (comm.rank, comm.local_rank, comm.local_size) == (
        comm.topology.rank,
        comm.topology.local_rank,
        comm.topology.local_size,
    )


def check_unique_names(comm: Communicator) -> None:
    names = [comm.unique_name("u"), comm.unique_name("u"), comm.unique_name("v")]
    assert names == ["u.0", "u.1", "v.0"]


def check_barrier(comm: Communicator) -> None:
    if comm.rank == comm.size - 1:
        time.sleep(0.3)
    entered = time.time()
    comm.barrier()
    left = time.time()
    assert comm.size == 1 or max(comm.gather_objects(entered)) <= left + 0.001


def check_derived(comm: Communicator) -> None:
    agree(comm, ("same", 3), "config")
    if comm.size > 1:
        raises(lambda: agree(comm, comm.rank == 1, "lr"), "differ in lr", "rank 1: True", "0")
    assert any_rank(comm, comm.rank == comm.size - 1) is True
    assert any_rank(comm, False) is False


def check_closed(comm: Communicator) -> None:
    """The last one."""
    comm.close()
    comm.close()
    raises(lambda: comm.barrier(), "after close()")
    raises(lambda: comm.allreduce_(torch.zeros(1), "late"), "after close()")


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    comm = init(options.backend, options.engine, timeout_s=30)
    begin = time.monotonic()
    assert CHECKS[-1] is check_closed
    for check in CHECKS:
        comm.where = check.__name__
        check(comm)
    if comm.rank == 0:
        print(
            f"{len(CHECKS)} checks passed, {comm.engine} {comm.backend} {comm.size}, {time.monotonic() - begin:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
