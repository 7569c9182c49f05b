"""The mean over ranks and micro-batches is exact, and what would make it wrong is refused."""

import contextlib
import copy
import gc
import math
import pickle
import weakref

import pytest
import torch
from torch.nn import functional as F

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import CollectiveError, ConfigError, LossError, NonFiniteError
from hvd_trainer.optim.choose_way import WayChooser
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.plan import BatchPlan
from hvd_trainer.values import Weighted
from tests.fake_comm import OtherRankFailed, run_threads
from tests.optim.vectors import AVERAGING, MOMENTUM

# The names of what was sent are looked at.
MESSAGES_ONLY = pytest.mark.parametrize("way", ["messages"], indirect=True)


@pytest.fixture(autouse=True, params=["messages", "small messages", "shared early", "shared late", "small", "nodes"])
def way(request, monkeypatch):
    """Every test of this file runs all ways; "nodes" makes nodes of 1 + 1 ranks, 2 + 1, 2 + 2."""
    engines = set() if "messages" in request.param else {"threads", "mpi", "horovod", "torch"}
    monkeypatch.setattr("hvd_trainer.optim.choose_way.AUTO_ENGINES", engines)
    if request.param == "messages" or "shared" in request.param:
        monkeypatch.setattr("hvd_trainer.optim.small_messages.MOST_BYTES", 0)
        monkeypatch.setattr("hvd_trainer.optim.small_sums.MOST_BYTES", 0)
    if request.param == "shared early":
        monkeypatch.setattr("hvd_trainer.optim.shared_sums.LATE_BYTES", 0)
    if request.param == "nodes":
        monkeypatch.setattr("tests.fake_comm.pretended_hosts", lambda size: [2 * rank // max(size, 2) for rank in range(size)])
        obstacle = WayChooser.obstacle
        monkeypatch.setattr(WayChooser, "obstacle", lambda *args: obstacle(*args).replace("one rank on each node", ""))


BOTH_OVERLAPS = pytest.mark.parametrize("overlap", [True, False])


def sgd(*params, lr=1.0, **options):
    return torch.optim.SGD(list(params), lr=lr, **options)


def parameter(*values, dtype=torch.float64):
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def wrap(optimizer, comm, **options):
    return DistributedOptimizer(optimizer, comm, **{"lr_scaling": "none", **options})


def half_squares(w, x, y):
    return 0.5 * (x @ w - y).square().sum()


# -- exact means ----------------------------------------------------------------------------------------------------


@BOTH_OVERLAPS
@pytest.mark.parametrize("bucket_bytes", [1, 24, 1 << 20])
def test_ragged_ranks_give_the_gradient_of_the_whole_batch(overlap, bucket_bytes):
    """vectors/averaging_identity: sizes 3, 3, 3, 1."""
    x, y, start = (torch.tensor(AVERAGING[key], dtype=torch.float64) for key in ("X", "y", "w"))

    def rank_main(comm):
        w = parameter(*AVERAGING["w"])
        bias = parameter(0.0)
        opt = wrap(sgd(w, bias), comm, overlap=overlap, bucket_bytes=bucket_bytes)
        begin = 3 * comm.rank
        end = begin + AVERAGING["ragged_sizes"][comm.rank]
        opt.backward(Weighted(half_squares(w, x[begin:end], y[begin:end] - bias), end - begin))
        opt.step()
        return start - w.detach(), opt.last_loss.mean

    found = run_threads(4, rank_main)
    expected = torch.tensor(AVERAGING["ragged_full"], dtype=torch.float64)
    wrong = torch.tensor(AVERAGING["ragged_naive_mean_WRONG"], dtype=torch.float64)
    for gradient, loss in found:
        torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)
        assert (gradient - wrong).norm() > 0.1
        assert loss == found[0][1]
    assert found[0][1] == pytest.approx(half_squares(start, x[:10], y[:10]).item() / 10)


def test_different_local_batches_pytorch_67253():
    """y = 2x, w = 0, x = [1, 2, 3] and [4]: the gradient is -30; the mean of means would be -41.33."""

    def rank_main(comm):
        w = parameter(0.0)
        x = torch.tensor([1.0, 2.0, 3.0] if comm.rank == 0 else [4.0], dtype=torch.float64)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted((w * x - 2 * x).square().sum(), len(x)))
        opt.synchronize()
        return w.grad.item()

    assert run_threads(2, rank_main) == [-30.0, -30.0]


def test_tokens_over_ranks_and_micro_batches():
    """Tokens [10, 2] and [4, 8], loss sums [10, 6] and [8, 8]: 1.3333; the mean of means would be 1.75."""

    def rank_main(comm):
        w = parameter(1.0)
        opt = wrap(sgd(w), comm)
        sums, tokens = ([10.0, 6.0], [10, 2]) if comm.rank == 0 else ([8.0, 8.0], [4, 8])
        for number in range(2):
            opt.backward(Weighted(w.sum() * sums[number], tokens[number]), last=number == 1)
        opt.step()
        return opt.last_loss.mean, 1.0 - w.item()

    for loss, gradient in run_threads(2, rank_main):
        assert loss == pytest.approx(32 / 24)
        assert gradient == pytest.approx(32 / 24)


@BOTH_OVERLAPS
@pytest.mark.parametrize("kind", ["weighted", "mean", "sum"])
def test_incomplete_windows_and_ranks_without_data(kind, overlap):
    """Rank r has r micro-batches (rank 0 none) of different sizes, in three steps of momentum SGD with weight decay."""
    torch.manual_seed(0)
    data = [[[torch.randn(size, 3, dtype=torch.float64) for size in range(1, r + 1)] for r in range(4)] for _ in range(3)]
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}

    def rank_main(comm):
        w, v = parameter(1.0, -2.0, 0.5), parameter(0.3)
        opt = wrap(sgd(w, v, **options), comm, loss_reduction=None if kind == "weighted" else kind, overlap=overlap)
        for step in range(3):
            mine = data[step][comm.rank]
            for number, x in enumerate(mine):
                total = (x @ w - v).square().sum()
                loss = {"weighted": Weighted(total, len(x)), "mean": total / len(x), "sum": total}[kind]
                opt.backward(loss, weight=None if kind == "weighted" else len(x), last=number == len(mine) - 1)
            opt.step()
            opt.zero_grad()
        return torch.cat([w.detach(), v.detach()])

    w, v = parameter(1.0, -2.0, 0.5), parameter(0.3)
    plain = sgd(w, v, **options)
    for step in range(3):
        x = torch.cat([part for mine in data[step] for part in mine])
        plain.zero_grad()
        (x @ w - v).square().mean().backward()
        plain.step()
    for found in run_threads(4, rank_main):
        torch.testing.assert_close(found, torch.cat([w.detach(), v.detach()]), rtol=1e-12, atol=0)


def test_backward_none_is_a_rank_without_data():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(-3.0 * w.sum(), 2) if comm.rank == 1 else None)
        opt.step()
        return w.item()

    assert run_threads(3, rank_main) == [1.5] * 3


def test_magnitudes_on_the_wire_are_ordinary():
    """A sum over 65,536 samples would overflow float16; divided by the nominal weight it does not."""

    def rank_main(comm):
        w = parameter(0.0, dtype=torch.float16)
        plan = BatchPlan(global_batch=2 * 65536, num_ranks=2, reference_batch=65536)
        opt = wrap(sgd(w), comm, plan=plan)
        opt.backward(Weighted((w.float() * 2).sum() * 65536, 65536))
        opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [-2.0, -2.0]


def test_plain_backward_has_equal_weights():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        (w * (comm.rank + 1)).sum().backward()
        opt.step()
        assert opt.last_loss is None
        return w.item()

    assert run_threads(3, rank_main) == [-2.0] * 3


def test_plain_backward_after_weighted_steps_and_with_a_plan():
    """The nominal weight belongs to opt.backward alone."""

    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm, plan=BatchPlan(64, comm.size, reference_batch=64))
        opt.backward(Weighted(w.sum() * 32, 32))
        opt.step()
        opt.zero_grad()
        (w * (comm.rank + 1)).sum().backward()
        opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [-2.5] * 2


def test_plain_backward_counts_only_ranks_that_have_gradients():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        if comm.rank:
            (w * (comm.rank + 1)).sum().backward()
        opt.step()
        return w.item()

    assert run_threads(3, rank_main) == [-2.5] * 3


# -- parameters of every kind ---------------------------------------------------------------------------------------


def test_parameters_that_ranks_use_differently():
    """Used by one rank: its share of the mean. Used by nobody: no gradient, so no weight decay. Checked for grad = None."""

    def rank_main(comm):
        one, nobody, everybody = parameter(1.0), parameter(1.0), parameter(1.0)
        opt = wrap(sgd(one, nobody, everybody, lr=0.1, weight_decay=0.5), comm, bucket_bytes=8)
        loss = everybody.sum() + (4 * one.sum() if comm.rank == 1 else 0)
        opt.backward(Weighted(loss, 1))
        opt.synchronize()
        assert nobody.grad is None
        opt.step()
        return one.item(), nobody.item(), everybody.item()

    for one, nobody, everybody in run_threads(2, rank_main):
        assert one == pytest.approx(1 - 0.1 * (2 + 0.5))
        assert nobody == 1.0
        assert everybody == pytest.approx(1 - 0.1 * (1 + 0.5))


def test_used_in_one_step_and_not_in_the_next():
    """What lies in a bucket from the step before must not be taken for a gradient."""

    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        opt = wrap(sgd(a, b), comm)
        for step in range(2):
            opt.backward(Weighted((a if step else a + 10 * b).sum(), 1))
            opt.step()
            opt.zero_grad()
        return a.item(), b.item()

    assert run_threads(2, rank_main) == [(-2.0, -10.0)] * 2


def test_mixed_and_complex_dtypes():
    """One bucket a dtype; a complex parameter travels as pairs of reals; an empty and a scalar parameter are fine."""
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128]

    def rank_main(comm):
        params = [parameter(1.0, 2.0, dtype=dtype) for dtype in dtypes]
        params += [torch.nn.Parameter(torch.empty(0, 3)), torch.nn.Parameter(torch.tensor(0.5))]
        opt = wrap(sgd(*params, lr=0.5), comm)
        factor = comm.rank + 1
        total = sum((p.abs().square().sum() if p.is_complex() else p.square().sum()).double() for p in params)
        opt.backward(Weighted(total * factor, 1))
        assert all(p.grad.dtype == p.dtype and p.grad.shape == p.shape for p in params)
        opt.step()
        return [p.detach() for p in params]

    for found in run_threads(2, rank_main):
        for param, dtype in zip(found, dtypes):
            torch.testing.assert_close(param, torch.tensor([-0.5, -1.0], dtype=dtype))  # p - 0.5 * 1.5 * 2p
        assert found[-2].shape == (0, 3)
        assert found[-1].item() == -0.25


def test_complex_gradient_equals_plain_torch():
    start = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128)
    target = torch.tensor([[0.5 - 1j, 2 + 0j], [1j, -1 + 1j], [3 + 0j, 0j]], dtype=torch.complex128)

    def rank_main(comm):
        w = torch.nn.Parameter(start.clone())
        opt = wrap(sgd(w, lr=0.1), comm)
        mine = target[:2] if comm.rank == 0 else target[2:]
        opt.backward(Weighted((w - mine).abs().square().sum(), len(mine)))
        opt.step()
        return w.detach()

    w = torch.nn.Parameter(start.clone())
    plain = sgd(w, lr=0.1)
    ((w - target).abs().square().sum() / 3).backward()
    plain.step()
    for found in run_threads(2, rank_main):
        torch.testing.assert_close(found, w.detach(), rtol=1e-12, atol=0)


def test_sparse_gradients_are_made_dense():
    def rank_main(comm):
        table = torch.nn.Embedding(4, 1, sparse=True, dtype=torch.float64)
        table.weight.data.zero_()
        opt = wrap(sgd(table.weight), comm)
        for _ in range(2):  # the second time the gradient of the step before is there to be mixed up
            for number, index in enumerate([comm.rank, 3]):
                opt.backward(Weighted(table(torch.tensor([index, index])).sum(), 2), last=number == 1)
            opt.step()
            opt.zero_grad()
        return table.weight.detach().flatten().tolist()

    assert run_threads(2, rank_main) == [[-0.5, -0.5, 0.0, -1.0]] * 2


def test_non_contiguous_parameters():
    def rank_main(comm):
        w = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t())
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted((w * torch.arange(6.0).view(3, 2)).sum() * (comm.rank * 2), 1))
        opt.step()
        return (torch.arange(6.0).view(2, 3).t() - w.detach()).tolist()

    assert run_threads(2, rank_main) == [torch.arange(6.0).view(3, 2).tolist()] * 2


@BOTH_OVERLAPS
def test_frozen_and_later_unfrozen(overlap):
    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        b.requires_grad_(False)
        opt = wrap(sgd(a, b), comm, overlap=overlap)
        values = []
        for step in range(3):
            b.requires_grad_(step == 1)
            opt.backward(Weighted(((a + b) * (1 + comm.rank)).sum(), 1))
            opt.step()
            opt.zero_grad()
            values.append((a.item(), b.item()))
        return values

    assert run_threads(2, rank_main) == [[(-1.5, 0.0), (-3.0, -1.5), (-4.5, -1.5)]] * 2


@pytest.mark.parametrize("ours", [True, False])
def test_frozen_between_backward_and_step(ours):
    """torch steps whatever has a gradient, so that gradient must be the mean as well, or the replicas part."""

    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        opt = wrap(sgd(a, b), comm)
        loss = ((a + b) * (1 + comm.rank)).sum()
        opt.backward(Weighted(loss, 1)) if ours else loss.backward()
        b.requires_grad_(False)
        opt.step()
        return a.item(), b.item()

    assert run_threads(2, rank_main) == [(-1.5, -1.5)] * 2


def test_group_added_later():
    """Its rate is scaled, its parameters are rank 0's, and it takes part in the mean."""

    def rank_main(comm):
        a, b = parameter(0.0), parameter(7.0 + comm.rank)
        opt = DistributedOptimizer(sgd(a, lr=0.1), comm)
        opt.add_param_group({"params": [b], "lr": 0.01})
        assert [group["lr"] for group in opt.param_groups] == pytest.approx([0.2, 0.02])
        assert b.item() == 7.0
        opt.backward(Weighted(((a + b) * comm.rank).sum(), 1))
        opt.step()
        return a.item(), b.item()

    for a, b in run_threads(2, rank_main):
        assert (a, b) == (pytest.approx(-0.1), pytest.approx(7 - 0.01))


def test_parameters_start_as_rank_0s():
    def rank_main(comm):
        w = parameter(float(comm.rank), 1.0)
        half = torch.nn.Parameter(torch.full((3,), 0.5 + comm.rank, dtype=torch.bfloat16))
        wrap(sgd(w, half), comm)
        return w.tolist(), half.tolist()

    assert run_threads(3, rank_main) == [([0.0, 1.0], [0.5, 0.5, 0.5])] * 3


# -- order of sending -----------------------------------------------------------------------------------------------


@MESSAGES_ONLY
def test_buckets_go_in_index_order_whatever_backward_does():
    """Rank 1 finishes its layers in the opposite order; both send bucket 0, 1, 2, ... and none waits for ever."""

    def rank_main(comm):
        params = [parameter(1.0) for _ in range(5)]
        opt = wrap(sgd(*params), comm, bucket_bytes=8)
        value = torch.zeros(1, dtype=torch.float64)
        for param in params if comm.rank == 0 else params[::-1]:
            value = torch.sin(value) + param * value + param
        opt.backward(Weighted(value.sum(), 1))
        early = list(comm.sent)
        opt.step()
        return early, comm.sent, [p.item() for p in params]

    found = run_threads(2, rank_main)
    for early, sent, _ in found:
        assert [name.rsplit(".", 1)[1] for name in sent] == [f"bucket{n}" for n in range(5)] + ["numbers"]
        assert len(early) == 5  # all travelled while backward ran
    assert found[0][2] == found[1][2]


@MESSAGES_ONLY
def test_only_the_last_backward_sends():
    def rank_main(comm):
        a, b = parameter(1.0), parameter(1.0)
        opt = wrap(sgd(a, b), comm, bucket_bytes=8)
        opt.backward(Weighted((a + b).sum(), 1), last=False)
        before = list(comm.sent)
        opt.backward(Weighted((a + b).sum(), 1))
        during = list(comm.sent)
        opt.step()
        return len(before), len(during), a.item()

    assert run_threads(2, rank_main) == [(0, 2, 0.0)] * 2


@pytest.mark.parametrize("overlap", [True, False])
def test_a_gradient_that_all_ranks_clear_after_backward_is_none(overlap):
    """As DINO does with its last layer in the first epoch: the parameter is left alone, the others are not, and later it is trained."""

    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        opt = wrap(sgd(a, b, momentum=0.5), comm, overlap=overlap)
        seen = []
        for step in range(4):
            opt.zero_grad()
            opt.backward(Weighted((a + b).sum() * (1 + comm.rank), 1))
            if 0 < step < 3:
                a.grad = None
            opt.step()
            seen.append((a.item(), b.item()))
        return seen

    a, b = parameter(0.0), parameter(0.0)
    plain, expected = sgd(a, b, momentum=0.5), []
    for step in range(4):
        a.grad, b.grad = (None if 0 < step < 3 else torch.full_like(a, 1.5)), torch.full_like(b, 1.5)
        plain.step()
        expected.append((a.item(), b.item()))
    assert run_threads(2, rank_main) == [expected] * 2


@pytest.mark.parametrize("cleared", ["b", "ab"])
def test_a_gradient_that_one_rank_clears_is_refused_on_all_which_may_then_go_on(cleared):
    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        opt = wrap(sgd(a, b), comm)
        for step in range(5):  # more than there are sets of buffers
            opt.zero_grad()
            opt.backward(Weighted((a + 2 * b).sum() * (1 + step + comm.rank), 1))
            if step == 2 and comm.rank == 1:
                for each in (a, b)["ab".index(cleared) :]:
                    each.grad = None
            with pytest.raises(LossError, match="was set to None after backward on 1 of 2 ranks") if step == 2 else contextlib.nullcontext():
                opt.step()
        return a.item(), b.item()

    kept = sum(1.5 + step for step in (0, 1, 3, 4))
    assert run_threads(2, rank_main) == [(-kept, -2 * kept)] * 2


def test_all_gradients_cleared_after_backward_are_refused_on_all_ranks_which_may_then_go_on():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        for step in range(5):
            opt.zero_grad()
            opt.backward(Weighted(w.sum() * (1 + step + comm.rank), 1))
            if step == 2:
                w.grad = None
            with pytest.raises(LossError, match="no parameter has a gradient") if step == 2 else contextlib.nullcontext():
                opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [-sum(1.5 + step for step in (0, 1, 3, 4))] * 2


def test_a_rank_without_data_errs_with_those_that_cleared_all():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(w.sum(), 1) if comm.rank == 0 else None)
        w.grad = None
        with pytest.raises(LossError, match="no parameter has a gradient"):
            opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [0.0] * 2


@pytest.mark.parametrize("size", [2, 3])
def test_a_rate_that_is_another_on_one_rank_is_refused_on_all(size):
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        for rate, is_refused in ((0.5, False), (0.25 if comm.rank == 1 else 0.5, True), (0.25, False)):
            opt.param_groups[0]["lr"] = rate
            opt.zero_grad()
            opt.backward(Weighted(w.sum(), 1))
            with pytest.raises(CollectiveError, match="learning rates differ at step 2") if is_refused else contextlib.nullcontext():
                opt.step()
        return w.item()

    assert run_threads(size, rank_main) == [-0.75] * size


def test_others_in_the_place_of_gradients_that_were_sent_are_refused():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(w.sum(), 1))
        w.grad = w.grad * 0.5
        with pytest.raises(LossError, match="gradients were changed between backward and opt.step"):
            opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [0.0, 0.0]


def test_a_second_last_backward_is_refused():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(w.sum() * 2, 2))
        with pytest.raises(CollectiveError, match="got a gradient after its bucket was sent"):
            opt.backward(Weighted(w.sum() * 4, 4))
        return w.item()

    assert run_threads(2, rank_main) == [0.0, 0.0]


def test_zeros_from_the_model_and_a_parameter_without_gradient_are_no_change():
    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        opt = wrap(sgd(a, b), comm, bucket_bytes=1 << 20)
        for step in range(4):
            for each in (a, b):
                if each.grad is not None:
                    each.grad.zero_()  # as model.zero_grad(set_to_none=False)
            opt.backward(Weighted((b if step % 2 else a).sum(), 1))
            opt.step()
        return a.item(), b.item()

    assert run_threads(2, rank_main) == [(-2.0, -2.0)] * 2


def test_a_hook_that_takes_the_gradient_away_leaves_none():
    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        a.register_post_accumulate_grad_hook(lambda param: setattr(param, "grad", None))  # before ours
        opt = wrap(sgd(a, b), comm)
        opt.backward(Weighted((a + b).sum(), 1))
        opt.step()
        return a.item(), b.item()

    assert run_threads(2, rank_main) == [(0.0, -1.0)] * 2


@MESSAGES_ONLY
def test_nothing_is_sent_early_without_overlap():
    def rank_main(comm):
        w = parameter(1.0)
        opt = wrap(sgd(w), comm, overlap=False)
        opt.backward(Weighted(w.sum(), 1))
        return list(comm.sent)

    assert run_threads(2, rank_main) == [[], []]


def test_a_parameter_used_in_the_first_micro_batch_only():
    def rank_main(comm):
        a, b = parameter(0.0), parameter(0.0)
        opt = wrap(sgd(a, b), comm, bucket_bytes=8)
        opt.backward(Weighted((a + 3 * b).sum(), 1), last=False)
        opt.backward(Weighted(a.sum(), 1))
        opt.step()
        return a.item(), b.item()

    assert run_threads(2, rank_main) == [(-1.0, -1.5)] * 2


@MESSAGES_ONLY
def test_another_models_loss_sends_nothing_and_two_optimizers_alternate():
    """A GAN loop: the generator's loss leaves gradients in the discriminator, which are cleared before its own step."""

    def rank_main(comm):
        g, d = parameter(0.0), parameter(1.0)
        opt_g, opt_d = wrap(sgd(g, lr=0.1), comm), wrap(sgd(d, lr=0.1), comm)
        for _ in range(2):
            opt_d.zero_grad()
            opt_d.backward(Weighted((d * (g.detach() - 1 - comm.rank)).sum(), 1))
            opt_d.step()
            opt_g.zero_grad()
            sent = len(comm.sent)
            opt_g.backward(Weighted(-(d * g).sum(), 1))
            assert len(comm.sent) == sent + 1  # the generator's only bucket
            opt_g.step()
        return g.item(), d.item()

    g, d = 0.0, 1.0
    for _ in range(2):
        d -= 0.1 * (g - 1.5)
        g += 0.1 * d
    for found in run_threads(2, rank_main):
        assert found == pytest.approx((g, d))


def test_user_hooks_on_parameters_are_called():
    def rank_main(comm):
        w = parameter(1.0)
        calls = []
        w.register_hook(lambda grad: calls.append("tensor") or grad * 2)
        w.register_post_accumulate_grad_hook(lambda param: calls.append("accumulated"))
        opt = wrap(sgd(w), comm)
        opt.register_step_pre_hook(lambda *_: calls.append("before"))
        opt.register_step_post_hook(lambda *_: calls.append("after"))
        opt.backward(Weighted(w.sum(), 1))
        opt.step()
        return calls, w.item()

    assert run_threads(2, rank_main) == [(["tensor", "accumulated", "before", "after"], -1.0)] * 2


@MESSAGES_ONLY
def test_backward_with_create_graph_keeps_no_graph():
    w = parameter(3.0)
    opt = wrap(sgd(w), SingleCommunicator())
    with pytest.warns(UserWarning, match="create_graph"):
        w.square().sum().backward(create_graph=True)
    opt.step()
    assert w.item() == -3.0
    assert not w.grad.requires_grad


# -- clipping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["option", "method"])
def test_the_averaged_gradient_is_clipped(how):
    """g0 = (3, 0), g1 = (0, 4), at most 1: (.6, .8); clipping before averaging would give (.5, .5)."""

    def rank_main(comm):
        w = parameter(0.0, 0.0)
        opt = wrap(sgd(w), comm, clip_norm=1.0 if how == "option" else None)
        gradient = torch.tensor([[3.0, 0.0], [0.0, 4.0]][comm.rank], dtype=torch.float64)
        opt.backward(Weighted((w * gradient).sum(), 1))
        norm = opt.clip_grad_norm_(1.0) if how == "method" else None
        opt.step()
        return norm if how == "method" else opt.last_grad_norm, w.tolist()

    for norm, w in run_threads(2, rank_main):
        assert norm == pytest.approx(2.5)
        assert w == pytest.approx([-0.6, -0.8], rel=1e-6)  # torch adds 1e-6 to the norm


@pytest.mark.parametrize("how", ["option", "method"])
def test_the_averaged_gradient_is_clamped(how):
    def rank_main(comm):
        w = parameter(0.0, 0.0)
        opt = wrap(sgd(w), comm, clip_value=1.0 if how == "option" else None)
        gradient = torch.tensor([[3.0, 0.0], [0.0, 1.0]][comm.rank], dtype=torch.float64)
        opt.backward(Weighted((w * gradient).sum(), 1))
        if how == "method":
            opt.clip_grad_value_(1.0)
        opt.step()
        return w.tolist()

    assert run_threads(2, rank_main) == [[-1.0, -0.5]] * 2


@pytest.mark.parametrize("clip", [{"clip_norm": 1.0}, {}])
def test_gradient_that_is_not_finite(clip):
    """The loss is finite, a gradient is not: an error before the update that names parameter and rank."""

    def rank_main(comm):
        w = parameter(1.0)
        opt = wrap(sgd(w), comm, **clip)
        factor = math.inf if comm.rank == 1 else 1.0
        w.register_hook(lambda grad: grad * factor)
        opt.backward(Weighted(w.sum(), 1))
        try:
            opt.step()
        except NonFiniteError as error:
            return w.item(), str(error)
        return w.item(), ""

    for value, message in run_threads(2, rank_main):
        assert value == 1.0
        assert "gradient of 'param0'" in message and "step 1" in message and "on rank 1 " in message


# -- what is refused ------------------------------------------------------------------------------------------------


def test_nan_on_one_rank_is_an_error_on_all_and_changes_nothing():
    def rank_main(comm):
        w = parameter(1.0)
        opt = wrap(sgd(w, momentum=0.9), comm)
        with pytest.raises(NonFiniteError, match=r"nan on rank 1 at step 1; no parameter was changed"):
            opt.backward(Weighted(w.sum() * (math.nan if comm.rank == 1 else 1.0), 1))
            opt.step()
        before = w.item(), dict(opt.state)
        opt.zero_grad()  # whoever wants to go on can
        opt.backward(Weighted(w.sum(), 1))
        opt.step()
        return before, w.item()

    assert run_threads(2, rank_main) == [((1.0, {}), 0.0)] * 2


def test_infinities_of_both_signs_do_not_cancel():
    def rank_main(comm):
        w = parameter(1.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(w.sum() * math.inf * (1 - 2 * comm.rank), 1))
        with pytest.raises(NonFiniteError, match=r"inf on rank 0, -inf on rank 1"):
            opt.step()

    run_threads(2, rank_main)


def test_weight_zero_everywhere():
    def rank_main(comm):
        w = parameter(1.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(w.sum() * 0, 0))
        with pytest.raises(LossError, match="weight 0 on every rank at step 1"):
            opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [1.0, 1.0]


def test_weight_zero_on_one_rank_is_fine():
    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(w.sum() * comm.rank * 3, comm.rank * 2))
        opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [-1.5, -1.5]


def test_step_without_any_backward():
    w = parameter(1.0)
    with pytest.raises(LossError, match="nothing to average"):
        wrap(sgd(w), SingleCommunicator()).step()
    assert w.item() == 1.0


def test_mixing_both_kinds_of_backward():
    def rank_main(comm):
        w = parameter(1.0)
        opt = wrap(sgd(w), comm)
        if comm.rank == 0:
            w.sum().backward()
        else:
            opt.backward(Weighted(w.sum(), 1))
        with pytest.raises(LossError, match=r"1 ranks called loss.backward\(\) and 1 called opt.backward"):
            opt.step()
        return w.item()

    assert run_threads(2, rank_main) == [1.0, 1.0]


@BOTH_OVERLAPS
@pytest.mark.parametrize("last", [True, False])
def test_loss_backward_inside_our_window(overlap, last):
    """Its weight is not known, and it may hit a bucket that is under way."""
    w = parameter(1.0)
    opt = wrap(sgd(w), SingleCommunicator(), overlap=overlap)
    opt.backward(Weighted(w.sum(), 1), last=last)
    with pytest.raises((LossError, CollectiveError), match=r"opt.backward"):
        w.sum().backward()
        opt.step()
    assert w.item() == 1.0


def test_loss_backward_after_synchronize():
    """It would add this rank's own gradient to the mean: the replicas would part."""
    w = parameter(1.0)
    opt = wrap(sgd(w), SingleCommunicator())
    w.sum().backward()
    opt.clip_grad_norm_(1.0)
    w.sum().backward()
    with pytest.raises(LossError, match="after"):
        opt.step()
    assert w.item() == 1.0


def test_left_over_gradients():
    w = parameter(1.0)
    opt = wrap(sgd(w), SingleCommunicator())
    opt.backward(Weighted(w.sum(), 1))
    opt.step()
    with pytest.raises(LossError, match=r"left over when step 2 begins(.|\n)*zero_grad"):
        opt.backward(Weighted(w.sum(), 1))


@pytest.mark.parametrize("how", ["opt", "opt to zero", "model", "model to zero", "held", "by hand"])
def test_ways_to_clear_gradients(how):
    def rank_main(comm):
        model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        model.weight.data.zero_()
        opt = wrap(sgd(*model.parameters()), comm)
        for _ in range(3):
            opt.backward(Weighted(model(torch.ones(1, 1, dtype=torch.float64)).sum() * comm.rank * 2, 1))
            opt.step()
            if how == "by hand":
                model.weight.grad = None
            else:
                owner = {"opt": opt, "model": model, "held": opt.optimizer}[how.split()[0]]
                owner.zero_grad(set_to_none="zero" not in how)
        return model.weight.item()

    assert run_threads(2, rank_main) == [-3.0, -3.0]


def test_zero_grad_after_backward_forgets_the_window():
    """A skipped step: its gradients and its weight are gone, also where buckets were under way."""

    def rank_main(comm):
        w = parameter(0.0)
        opt = wrap(sgd(w), comm)
        opt.backward(Weighted(w.sum() * 100, 7))
        opt.zero_grad()
        opt.backward(Weighted(w.sum(), 1))
        opt.step()
        return w.item(), opt.last_loss.weight

    assert run_threads(2, rank_main) == [(-1.0, 2.0)] * 2


def test_backward_after_synchronize():
    w = parameter(1.0)
    opt = wrap(sgd(w), SingleCommunicator())
    opt.backward(Weighted(w.sum(), 1))
    opt.synchronize()
    with pytest.raises(LossError, match="after opt.synchronize"):
        opt.backward(Weighted(w.sum(), 1))


def test_second_backward_without_last_false():
    w = parameter(1.0)
    opt = wrap(sgd(w), SingleCommunicator(), named_parameters=[("layer.w", w)])
    opt.backward(Weighted(w.sum(), 1))
    with pytest.raises(CollectiveError, match=r"'layer.w'(.|\n)*last=False"):
        opt.backward(Weighted(w.sum(), 1))


def test_reentrant_checkpointing_says_what_to_do():
    from torch.utils.checkpoint import checkpoint

    a, b = parameter(1.0), parameter(1.0)

    def block(x):
        return torch.tanh(x * a) * b

    def loss(reentrant):
        x = torch.ones(1, dtype=torch.float64, requires_grad=True)
        return checkpoint(block, checkpoint(block, x, use_reentrant=reentrant), use_reentrant=reentrant).sum()

    opt = wrap(sgd(a, b), SingleCommunicator(), bucket_bytes=8)
    with pytest.raises(CollectiveError, match="use_reentrant=False"):
        opt.backward(Weighted(loss(True), 1))
    a.grad = b.grad = None
    values = []
    for reentrant, overlap in ((False, True), (True, False)):
        p, q = (parameter(1.0), parameter(1.0))
        a, b = p, q
        opt = wrap(sgd(p, q), SingleCommunicator(), overlap=overlap)
        opt.backward(Weighted(loss(reentrant), 1))
        opt.step()
        values.append((p.item(), q.item()))
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_a_parameter_that_reentrant_checkpointing_meets_twice_is_not_two():
    """`a` gets its gradient in two parts before the bucket is complete; `b` in the same bucket is not used at all."""
    from torch.utils.checkpoint import checkpoint

    def rank_main(comm):
        a, b = parameter(2.0), parameter(1.0)
        opt = wrap(sgd(a, b, weight_decay=0.5), comm)
        x = torch.ones(1, dtype=torch.float64, requires_grad=True)
        for_two = checkpoint(lambda v: v * a, checkpoint(lambda v: v * a, x, use_reentrant=True), use_reentrant=True)
        opt.backward(Weighted(for_two.sum(), 1))
        opt.step()
        return a.item(), b.item()

    assert run_threads(2, rank_main) == [(2.0 - 4.0 - 1.0, 1.0)] * 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda w: w.sum(), "plain tensor"),
        (lambda w: Weighted(w.sum().detach(), 1), "no gradient"),
        (lambda w: Weighted(w.sum(), -1), "weight -1"),
        (lambda w: Weighted(w.sum(), math.nan), "weight nan"),
        (lambda w: Weighted(3.0, 1), "float"),
        (lambda w: Weighted((w > 0).sum(), 1), "int64"),
        (lambda w: 3.0, "a float"),
        (lambda w: {"loss": w.sum()}, "a dict"),
    ],
)
def test_losses_that_cannot_be_averaged(make, words):
    w = parameter(1.0)
    opt = wrap(sgd(w), SingleCommunicator())
    with pytest.raises(LossError, match=words):
        opt.backward(make(w))


def test_plain_losses_need_a_shape_and_a_weight():
    w = parameter(1.0, 2.0)
    with pytest.raises(LossError, match="shape"):
        wrap(sgd(w), SingleCommunicator(), loss_reduction="mean").backward(w * 2)
    with pytest.raises(LossError, match="no weight"):
        wrap(sgd(w), SingleCommunicator(), loss_reduction="sum").backward(w.sum())
    with pytest.raises(ConfigError, match="loss_reduction='average'"):
        wrap(sgd(w), SingleCommunicator(), loss_reduction="average")


def test_what_cannot_be_wrapped():
    w = parameter(1.0)
    for bad in (0, -1.0, True, "1", math.nan):
        with pytest.raises(ConfigError, match="clip_norm"):
            wrap(sgd(w), SingleCommunicator(), clip_norm=bad)
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        wrap(sgd(frozen), SingleCommunicator())


def test_ranks_with_different_models():
    def rank_main(comm):
        model = torch.nn.Linear(3, 2 + comm.rank)
        wrap(sgd(*model.parameters()), comm, named_parameters=model.named_parameters())

    found = run_threads(3, rank_main, catch=True)
    for error in found:
        assert isinstance(error, CollectiveError) and not isinstance(error, OtherRankFailed)
        assert "rank 0: weight [2, 3] float32; rank 1: weight [3, 3] float32" in str(error)


# -- state ----------------------------------------------------------------------------------------------------------


def test_no_hidden_step_and_no_lost_state():
    """SGD with weight decay .1: p = 1.0 must stay 1.0 while it is wrapped (horovod#3743), and momentum must survive."""

    def rank_main(comm):
        p = parameter(1.0)
        plain = sgd(p, lr=0.1, weight_decay=0.1, momentum=0.9)
        p.grad = torch.ones_like(p)
        plain.step()
        plain.zero_grad()
        moved, buffer = p.item(), plain.state[p]["momentum_buffer"].clone()
        opt = wrap(plain, comm)
        assert p.item() == moved
        assert torch.equal(opt.state[p]["momentum_buffer"], buffer)
        fresh = parameter(1.0)
        wrap(sgd(fresh, lr=0.1, weight_decay=0.1), comm)
        return fresh.item()

    assert run_threads(2, rank_main) == [1.0, 1.0]


def test_adams_first_update_is_the_whole_rate():
    """.744 lr after a hidden step with zero gradients (horovod#3743)."""

    def rank_main(comm):
        p = parameter(0.0)
        opt = wrap(torch.optim.Adam([p], lr=0.1, eps=0), comm)
        opt.backward(Weighted(p.sum() * 5, 1))
        opt.step()
        return p.item()

    assert run_threads(2, rank_main) == [pytest.approx(-0.1)] * 2


def test_state_that_only_rank_0_has_reaches_all():
    """The usual resume: rank 0 loads, then everybody wraps (horovod#1774, #526). State and options must be equal."""

    def rank_main(comm):
        p = parameter(float(comm.rank))
        plain = sgd(p, lr=0.1, momentum=0.9, weight_decay=0.1)
        if comm.rank == 0:
            p.grad = torch.ones_like(p)
            plain.step()
            p.grad = None
            plain.param_groups[0]["lr"] = 0.025
        opt = wrap(plain, comm)
        opt.backward(Weighted(p.sum(), 1))
        opt.step()
        return p.item(), opt.state[p]["momentum_buffer"].item(), opt.param_groups[0]["lr"]

    found = run_threads(3, rank_main)
    assert found == [found[0]] * 3
    assert found[0][2] == 0.025
    buffer = 0.9 * 1.0 + 1.0 + 0.1 * -0.1  # momentum of rank 0's step, then gradient and weight decay
    assert found[0][1] == pytest.approx(buffer)


def test_state_dict_goes_to_a_plain_optimizer_and_back():
    def take(opt, p, steps):
        for _ in range(steps):
            opt.zero_grad()
            if isinstance(opt, DistributedOptimizer):
                opt.backward(Weighted(p.square().sum(), 1))
            else:
                p.square().sum().backward()
            opt.step()

    def make():
        p = parameter(1.0)
        return p, torch.optim.AdamW([p], lr=0.1, weight_decay=0.1)

    straight, plain = make()
    take(plain, straight, 6)
    p, first = make()
    take(wrapped := wrap(first, SingleCommunicator()), p, 2)
    q, second = make()
    second.load_state_dict(wrapped.state_dict())
    q.data.copy_(p.data)
    take(second, q, 2)
    r, third = make()
    third = wrap(third, SingleCommunicator())
    third.load_state_dict(second.state_dict())
    r.data.copy_(q.data)
    take(third, r, 2)
    assert r.item() == straight.item()


def test_rate_is_scaled_once_over_any_number_of_cycles():
    """Also when the number of ranks changes: the recipe of the first start holds."""
    state = None
    for size in (2, 3, 1, 4, 4):

        def rank_main(comm, state=state):
            opt = DistributedOptimizer(sgd(parameter(1.0), lr=0.1), comm)
            assert opt.param_groups[0]["lr"] == pytest.approx(0.1 * comm.size)
            if state is not None:
                opt.load_state_dict(state)
                opt.load_state_dict(opt.state_dict())
            assert opt.param_groups[0]["lr"] == pytest.approx(0.2)
            return opt.state_dict()

        state = run_threads(size, rank_main)[0]


def test_state_of_a_plain_optimizer_is_scaled_when_loaded():
    def rank_main(comm):
        opt = DistributedOptimizer(sgd(parameter(1.0), lr=0.1), comm)
        opt.load_state_dict(sgd(parameter(1.0), lr=0.3).state_dict())
        return opt.param_groups[0]["lr"]

    assert run_threads(2, rank_main) == [0.6, 0.6]


def test_wrapping_twice_in_turn_scales_once():
    """The same user's optimizer given to two wrappers (a second Trainer)."""

    def rank_main(comm):
        plain = sgd(parameter(1.0), lr=0.1)
        DistributedOptimizer(plain, comm)
        DistributedOptimizer(plain, comm)
        return plain.param_groups[0]["lr"]

    assert run_threads(2, rank_main) == [0.2, 0.2]


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_rates_that_cannot_be(rate):
    optimizer = sgd(parameter(1.0))
    optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(ConfigError, match="learning rate"):
        DistributedOptimizer(optimizer, SingleCommunicator())


def test_rate_held_in_a_tensor():
    def rank_main(comm):
        rate = torch.tensor(0.25, dtype=torch.float64)
        opt = DistributedOptimizer(torch.optim.Adam([parameter(1.0)], lr=rate, foreach=False), comm)
        assert opt.param_groups[0]["lr"] is rate  # compiled steps hold on to it
        return rate.item()

    assert run_threads(2, rank_main) == [0.5, 0.5]


def test_adam_hint_once(capsys):
    def rank_main(comm, **options):
        DistributedOptimizer(torch.optim.AdamW([parameter(1.0)], lr=0.1), comm, **options)
        DistributedOptimizer(sgd(parameter(1.0)), comm)

    run_threads(3, rank_main)
    printed = capsys.readouterr().out
    assert printed.count("hint: AdamW") == 1
    assert "sqrt" in printed and "factor 3" in printed
    run_threads(3, lambda comm: rank_main(comm, lr_scaling="sqrt"))
    run_threads(1, rank_main)
    assert "hint" not in capsys.readouterr().out


def test_momentum_is_not_corrected():
    """vectors/momentum_correction: torch keeps the rate outside of the buffer; a correction would be wrong here."""
    w = parameter(0.0, 0.0)
    opt = wrap(sgd(w, lr=0.1, momentum=0.9), SingleCommunicator())
    for lr, gradient, expected in zip(MOMENTUM["lr"], MOMENTUM["grads"], MOMENTUM["torch_form"]):
        opt.param_groups[0]["lr"] = lr
        opt.zero_grad()
        opt.backward(Weighted((w * torch.tensor(gradient, dtype=torch.float64)).sum(), 1))
        opt.step()
        assert w.tolist() == pytest.approx(expected, rel=1e-12)


def test_whole_model_against_plain_torch_with_adamw():
    torch.manual_seed(1)
    x, y = torch.randn(13, 4, dtype=torch.float64), torch.randint(0, 3, (13,))
    template = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)).double()
    start = {name: value.clone() for name, value in template.state_dict().items()}

    def make():
        model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)).double()
        model.load_state_dict(start)
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, eps=1e-3)

    def rank_main(comm):
        model, optimizer = make()
        opt = wrap(optimizer, comm, bucket_bytes=100)
        shares = BatchPlan(13, comm.size, micro_batch=2)
        begin, _ = shares.rank_slice(comm.rank)
        for _ in range(10):
            at, sizes = begin, shares.micro_batches(comm.rank)
            for number, size in enumerate(sizes):
                total = F.cross_entropy(model(x[at : at + size]), y[at : at + size], reduction="sum")
                opt.backward(Weighted(total, size), last=number == len(sizes) - 1)
                at += size
            opt.step()
            opt.zero_grad()
        return model.state_dict()

    model, optimizer = make()
    for _ in range(10):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for found in run_threads(3, rank_main):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-13)


def test_gradients_of_another_optimizers_loss_are_refused():
    """One loss for two optimizers: the second has the first one's scale and no weight (it used to step silently)."""
    a, b = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    comm = SingleCommunicator()
    first, second = (DistributedOptimizer(torch.optim.SGD([p], lr=0.1), comm) for p in (a, b))
    first.backward(Weighted((a * b).sum() * 4, 4))
    first.step()
    with pytest.raises(LossError, match="another DistributedOptimizer"):
        second.step()
    assert b.item() == 1.0
    for clear in (second.zero_grad, lambda: setattr(b, "grad", None)):
        clear()
        second._window.clear()
        (b * 3).sum().backward()
        second.step()
        second.zero_grad()
        first.zero_grad()
        first.backward(Weighted((a * b).sum() * 4, 4))
        first.step()


def test_gradients_cleared_inside_a_step_are_noticed():
    w = torch.nn.Parameter(torch.ones(1))
    opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.1), SingleCommunicator())
    opt.backward(Weighted(w.sum(), 1), last=False)
    w.grad = None
    with pytest.raises(LossError, match="no parameter has a gradient"):
        opt.step()


@pytest.mark.parametrize("change", [lambda w: torch.nn.utils.clip_grad_norm_([w], 0.1), lambda w: w.grad.mul_(2)], ids=["clip", "mul"])
@pytest.mark.parametrize("plain", [False, True], ids=["ours", "plain"])
def test_gradients_changed_before_they_are_averaged(change, plain):
    """torch's clipping after opt.backward clipped a part of the gradient, in other units, without a message."""
    w = torch.nn.Parameter(torch.ones(3))
    opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.1), SingleCommunicator())
    w.square().sum().backward() if plain else opt.backward(Weighted(w.square().sum() * 8, 8))
    change(w)
    with pytest.raises(LossError, match="clip_grad_norm_"):
        opt.step()
    opt.zero_grad()
    opt.backward(Weighted(w.square().sum() * 8, 8))
    opt.synchronize()
    change(w)  # now it is the mean, and the user's to change
    opt.step()


def test_a_copy_is_refused_and_breaks_nothing():
    w = torch.nn.Parameter(torch.ones(1))
    opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.1), SingleCommunicator())
    for attempt in (lambda: copy.deepcopy(opt), lambda: pickle.dumps(opt)):
        with pytest.raises(TypeError, match="state_dict"):
            attempt()
    opt.backward(Weighted(w.sum(), 1))
    opt.step()


def test_a_rate_set_after_a_trainers_run_is_a_new_reference():
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([w], lr=0.1)
    opt = DistributedOptimizer(optimizer, SingleCommunicator(), lr_scaling=4)
    optimizer.param_groups[0]["lr_last_set"] = optimizer.param_groups[0]["lr"]
    assert DistributedOptimizer(optimizer, SingleCommunicator(), lr_scaling=4).peak_lr == pytest.approx(0.4)
    optimizer.param_groups[0]["lr"] = 0.001
    opt = DistributedOptimizer(optimizer, SingleCommunicator(), lr_scaling=4)
    assert opt.param_groups[0]["lr"] == pytest.approx(0.004)


def test_a_rule_of_the_user_gets_plain_numbers():
    class Rule:
        name = "mine"

        def factor(self, global_batch, reference_batch):
            assert type(global_batch) in (int, float) and type(reference_batch) in (int, float)
            return float(f"{global_batch / reference_batch:.3f}")

    def rank(comm):
        w, plan = torch.nn.Parameter(torch.ones(1)), BatchPlan(100, comm.size)
        return DistributedOptimizer(torch.optim.SGD([w], lr=0.1), comm, lr_scaling=Rule(), plan=plan).lr_scale

    assert run_threads(3, rank) == [3.0] * 3


@pytest.mark.parametrize("reduce_through", ["messages", "shared"])
def test_an_optimizer_that_nobody_holds_leaves_nothing_behind(reduce_through):
    """A search trains hundreds of models in one job (0.4 MB and a file were lost with each)."""

    def rank_main(comm):
        w = torch.nn.Parameter(torch.ones(4))
        opt = DistributedOptimizer(torch.optim.SGD([w], lr=0.1), comm, reduce_through=reduce_through)
        opt.backward(Weighted(w.sum(), 1))
        opt.step()
        reducer = weakref.ref(opt._current.reducer)
        comm.barrier()
        del opt, w
        gc.collect()
        return reducer() is None

    assert run_threads(2, rank_main) == [True, True]


@pytest.mark.parametrize("update_by", ["shards", "tensors"])
def test_the_clipping_limit_may_be_set_between_steps(update_by):
    def rank_main(comm):
        w = torch.nn.Parameter(torch.zeros(4))
        opt = DistributedOptimizer(torch.optim.SGD([w], lr=1.0), comm, lr_scaling="none", reduce_through="shared", update_by=update_by)
        moved = []
        for opt.clip_norm in (None, 0.5, None):
            before = w.detach().clone()
            opt.backward(Weighted((w * 3).sum(), 1))
            opt.step()
            opt.zero_grad()
            moved.append((w.detach() - before).norm().item())
        with pytest.raises(ConfigError, match="clip_norm"):
            opt.clip_norm = -1.0
        return moved, opt.last_grad_norm

    for moved, norm in run_threads(2, rank_main):
        assert moved == pytest.approx([6.0, 0.5, 6.0], rel=1e-5)
        assert norm == pytest.approx(6.0)


def test_a_gradient_in_the_memory_that_backward_starts_with():
    """Of a parameter in no optimizer here, which is added to in place: the next step starts with ones, and not with that sum."""
    w, scale = parameter(0.0), torch.nn.Parameter(torch.zeros(1))
    opt = wrap(sgd(w), SingleCommunicator())
    found = []
    for _ in range(4):
        for last in (False, True):
            opt.backward(Weighted(scale.squeeze() + w.sum(), 1), last=last)
        opt.step()
        found.append(w.grad.item())
        opt.zero_grad()
        scale.grad = None
    assert found == [1.0] * 4


@pytest.mark.parametrize("options", [{"reduce_through": "messages"}, {"reduce_through": "shared", "update_by": "shards"}], ids=["messages", "shared"])
@pytest.mark.parametrize("second", ["no data", "one layer", "another layer"])
def test_a_step_thrown_away_of_which_ranks_had_sent_unequal_parts(options, second):
    def rank_main(comm):
        first, last = (torch.nn.Parameter(torch.zeros(40)) for _ in range(2))
        opt = wrap(torch.optim.SGD([first, last], lr=1.0), comm, bucket_bytes=1, lr_scaling="none", **options)
        used = {"no data": None, "one layer": last, "another layer": first}[second] if comm.rank else first + last
        opt.backward(used if used is None else Weighted((used * 100).sum(), 1))
        opt.zero_grad()
        for _ in range(2):
            opt.backward(Weighted((first + last).sum(), 1))
            opt.step()
            opt.zero_grad()
        return first[0].item(), last[0].item()

    assert run_threads(2, rank_main) == [(-2.0, -2.0)] * 2
