"""Sums over several nodes: what is carried by whom, in which order, with which update, and when it is chosen."""

import copy

import pytest
import torch

from hvd_trainer.errors import ConfigError, NonFiniteError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.optim.node_sums import NodeSums
from hvd_trainer.values import Weighted
from tests.fake_comm import run_threads, same_bits
from tests.optim.test_flat_update import (
    OPTIMIZERS,
    SHARDS,
    assert_same_state,
    groups_of,
    make_model,
    reference,
    train,
    wrap,
)

TWO_BY_TWO, TWO_AND_ONE, MIXED = "aabb", "aab", "abacb"  # the host of each rank


@pytest.fixture
def auto(monkeypatch):
    monkeypatch.setattr("hvd_trainer.optim.choose_way.AUTO_ENGINES", {"threads"})


def run(hosts, function, **options):
    return run_threads(len(hosts), function, hosts=hosts, **options)


@pytest.mark.parametrize(("name", "carry_bytes"), [("momentum", 1), ("adamw", 300), ("momentum", 1 << 20)])
@pytest.mark.parametrize("hosts", [TWO_BY_TWO, TWO_AND_ONE, MIXED])
def test_shards_of_several_nodes_are_the_plain_update(hosts, name, carry_bytes, monkeypatch):
    """The same bits on all ranks and in a second run; the state is the ordinary one, and any layout goes on from it."""
    monkeypatch.setattr("hvd_trainer.optim.node_sums.CARRY_BYTES", carry_bytes)
    make = OPTIMIZERS[name]
    expected, plain = reference(make, len(hosts), 3)

    def rank_main(comm):
        params = make_model()
        opt = wrap(make(groups_of(params)), comm, bucket_bytes=100, **SHARDS)
        train(params, opt, comm, 3)
        assert opt._updater.flat.shared and isinstance(opt._current.reducer.way, NodeSums)
        return [p.detach().clone() for p in params], copy.deepcopy(opt.state_dict())

    found, again = run(hosts, rank_main), run(hosts, rank_main)
    for params, state in (*found, *again):
        assert all(map(same_bits, params, found[0][0]))
        torch.testing.assert_close(params, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)
        assert_same_state(state, plain.state_dict())
    params, state = found[0]

    def go_on(comm):
        mine = [torch.nn.Parameter(p.clone()) for p in params]
        opt = wrap(make(groups_of(mine)), comm, **SHARDS)
        opt.load_state_dict(copy.deepcopy(state))
        train(mine, opt, comm, 2, first=3)
        return [p.detach().clone() for p in mine]

    reference(make, 3, 2, expected, plain, first=3)
    for layout in ("aab", "aaa"):
        for resumed in run(layout, go_on):
            torch.testing.assert_close(resumed, [p.detach() for p in expected], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("hosts", "carriers"), [(TWO_BY_TWO, [0, 1, 2, 3]), (TWO_AND_ONE, [0, 2]), ("aaabb", [0, 1, 3, 4])])
def test_each_carries_its_slice_and_nobody_else_sends(hosts, carriers):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(100))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, **SHARDS)
        carried = sum(wire.numel() for wire in opt._current.reducer.way._wires)
        comm.sent.clear()
        opt.backward(Weighted((w * (1.0 + comm.rank)).sum(), 1))
        assert comm.sent == []  # nothing travels before all ranks are known to be in the step's end
        opt.step()
        return comm.rank if comm.sent else None, carried, w.tolist()

    found = run(hosts, rank_main)
    assert [rank for rank, *_ in found if rank is not None] == carriers
    for host in set(hosts):
        assert sum(numel for place, (_, numel, _) in zip(hosts, found) if place == host) == 100
    assert all(w == [-(1 + len(hosts)) / 2] * 100 for *_, w in found)


def test_sums_go_in_rank_order_inside_and_in_node_order_between():
    values = [1e16, 1.0, -1e16, 0.0]  # 1e16 + 1 is 1e16

    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, reduce_through="shared", update_by="tensors")
        opt.backward(Weighted((w * values[comm.rank]).sum(), 1))
        opt.synchronize()
        return w.grad.tolist()

    assert run("aabb", rank_main) == [[0.0] * 3] * 4
    assert run("abab", rank_main) == [[0.25] * 3] * 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_summed_in_32_and_rounded_once(dtype):
    values = [torch.randn(200, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(4)]
    large = 40_000.0 if dtype is torch.float16 else 3e38

    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(200, dtype=dtype))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, reduce_through="shared", update_by="tensors")
        found = []
        for own in (values[comm.rank], torch.full((200,), large if comm.rank % 2 else -large, dtype=dtype)):
            (w * own).sum().backward()
            opt.synchronize()
            found.append(w.grad.clone())
            opt.zero_grad()
        return found

    for mean, none in run(TWO_BY_TWO, rank_main):
        assert torch.equal(mean, (((values[0].float() + values[1]) + (values[2].float() + values[3])) / 4).to(dtype))
        assert not none.count_nonzero()


@pytest.mark.parametrize("carry_bytes", [1, 1 << 20])
@pytest.mark.parametrize(("compression", "narrow"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_compressed_each_node_rounds_its_sum_and_the_sum_of_these_is_rounded_once_more(dtype, compression, narrow, carry_bytes, monkeypatch):
    monkeypatch.setattr("hvd_trainer.optim.node_sums.CARRY_BYTES", carry_bytes)
    values = [torch.randn(200, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(3)]
    wire = dtype if dtype is torch.float16 else narrow

    def rank_main(comm):
        w, other = torch.nn.Parameter(torch.zeros(200, dtype=dtype)), torch.nn.Parameter(torch.zeros(70, dtype=torch.float32))
        opt = wrap(
            torch.optim.SGD([w, other], lr=1.0), comm, bucket_bytes=100, reduce_through="shared", update_by="tensors", compression=compression
        )
        assert {each.dtype for each in opt._current.reducer.way._wires} <= {wire, narrow}
        found = []
        for own in (values[comm.rank], torch.full((200,), 30_000.0, dtype=dtype)):
            ((w * own).sum() + other.sum()).backward()
            opt.synchronize()
            found.append(w.grad.clone())
            opt.zero_grad()
        return found

    shares = [((values[0].float() + values[1].float()) / 3).to(wire), (values[2].float() / 3).to(wire)]
    expected = (shares[0].float() + shares[1].float()).to(wire).to(dtype)
    for mean, constant in run(TWO_AND_ONE, rank_main):
        torch.testing.assert_close(mean, expected, rtol=torch.finfo(wire).eps, atol=1e-6)
        torch.testing.assert_close(mean.double(), torch.stack(values).double().mean(0), rtol=0, atol=4 * torch.finfo(wire).eps)
        # Its sum, 90,000, is beyond fp16.
        torch.testing.assert_close(constant.double(), torch.full((200,), 30_000.0).double(), rtol=torch.finfo(wire).eps, atol=0)
    first, *others = run(TWO_AND_ONE, rank_main)
    assert all(same_bits(mine, theirs) for other in others for mine, theirs in zip(first, other))


@pytest.mark.parametrize("compression", ["bf16", "fp16"])
@pytest.mark.parametrize("hosts", [TWO_AND_ONE, TWO_BY_TWO])
def test_compressed_plain_gradients_on_some_ranks_only(hosts, compression):
    """The others announce none: what the sum is divided by before it travels is known to all ranks of the node only together."""

    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(20))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, compression=compression, **SHARDS)
        opt.backward(Weighted((w * 0).sum(), 4))
        opt.step()
        opt.zero_grad()  # from here on a nominal weight is known
        if comm.rank == 1:
            (w * 2.0).sum().backward()
        opt.step()
        opt.release()
        return w.tolist()

    first, *others = run(hosts, rank_main)
    assert all(other == first for other in others) and first == pytest.approx([-2.0] * 20, rel=1e-2)


@pytest.mark.parametrize("bad_rank", range(3))
def test_a_gradient_that_is_not_finite_is_told_by_all_and_names_the_rank(bad_rank):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.ones(50))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, **SHARDS)
        loss = (w.detach() + torch.where(torch.arange(50) == 40, (w - 1).abs().sqrt() if comm.rank == bad_rank else w, w) - w.detach()).sum()
        opt.backward(Weighted(loss, 1))
        with pytest.raises(NonFiniteError, match=f"not finite on rank {bad_rank} at step 1"):
            opt.step()
        return w.tolist()

    assert run(TWO_AND_ONE, rank_main) == [[1.0] * 50] * 3


def test_thrown_away_in_the_middle_of_a_step_and_parameters_without_gradient():
    def rank_main(comm):
        params = [torch.nn.Parameter(torch.zeros(40)) for _ in range(3)]
        opt = wrap(torch.optim.SGD(params, lr=1.0), comm, bucket_bytes=1, **{**SHARDS, "update_by": "auto"})
        opt.backward(Weighted(sum((p * 7.0).sum() for p in params), 1))
        opt.zero_grad()  # after buckets were announced
        for used in (params, params[: 1 + comm.node]):
            opt.backward(Weighted(sum((p * (comm.rank + 1.0)).sum() for p in used), 1))
            opt.step()
            opt.zero_grad()
        return [p[0].item() for p in params]

    # The second parameter is used on the last node only, the third by nobody then.
    assert run(TWO_AND_ONE, rank_main) == [[-4.0, -3.0, -2.0]] * 3


@pytest.mark.parametrize("update_by", ["shards", "tensors"])
def test_clipping_by_the_norm_of_the_mean(update_by):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(64, dtype=torch.float64))
        opt = wrap(torch.optim.SGD([w], lr=1.0), comm, clip_norm=1.0, reduce_through="shared", update_by=update_by)
        opt.backward(Weighted((w * (comm.rank + 1.0)).sum(), 1))
        opt.step()
        return opt.last_grad_norm, w[0].item()

    for norm, w in run(TWO_AND_ONE, rank_main):
        assert (norm, w) == (pytest.approx(16.0), pytest.approx(-0.125, abs=1e-6))


def describe(comm, **options):
    opt = DistributedOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.zeros(9))], lr=1.0), comm, **options)
    return opt.describe_reduction()


def test_it_is_chosen_where_it_can_be_and_said(auto):
    assert set(run(TWO_AND_ONE, describe)) == {
        "gradients in 1 bucket through shared memory of each node and messages between them (2 nodes of 2 + 1 ranks); "
        "each rank updates 1/1 of the parameters"
    }
    assert "1/2 of the parameters" in run(TWO_BY_TWO, describe)[0]
    assert "messages (one rank on each node)" in run("abc", describe)[0]
    assert "each node and bf16 messages between them" in run(TWO_BY_TWO, lambda comm: describe(comm, compression="bf16"))[0]
    assert "messages (as asked)" in run(TWO_BY_TWO, lambda comm: describe(comm, reduce_through="messages"))[0]


def test_an_engine_that_joins_no_nodes_uses_messages_and_refuses_shared(auto, monkeypatch):
    monkeypatch.setattr("tests.fake_comm.ThreadCommunicator.has_bridges", False)
    assert "messages (2 nodes, which engine threads does not join)" in run(TWO_BY_TWO, describe)[0]

    def refused(comm):
        with pytest.raises(ConfigError, match='reduce_through="shared", but 2 nodes, which engine threads does not join'):
            describe(comm, reduce_through="shared")

    run(TWO_BY_TWO, refused)


@pytest.mark.parametrize(("before", "after"), [("aabb", "aaaa"), ("aaaa", "aaab"), ("aaab", "aabb")])
def test_a_resume_on_other_nodes_says_that_sums_go_in_another_order(before, after, capsys):
    states = run(before, lambda comm: wrap(torch.optim.SGD([torch.nn.Parameter(torch.zeros(9))], lr=1.0), comm, **SHARDS).state_dict())

    def load(comm):
        opt = wrap(torch.optim.SGD([torch.nn.Parameter(torch.zeros(9))], lr=1.0), comm, **SHARDS)
        opt.load_state_dict(copy.deepcopy(states[comm.rank]))

    said = "gradients are summed in another order than before"
    capsys.readouterr()
    run(before, load)
    assert said not in capsys.readouterr().out
    run(after, load)
    out = capsys.readouterr().out
    assert out.count(said) == 1
    assert {"aabb": "2 nodes of 2 ranks", "aaaa": "1 node of 4 ranks", "aaab": "2 nodes of 3 + 1 ranks"}[before] + " -> " in out
