"""The range test: its suggestion from known curves, one stop for all ranks, and nothing changed afterwards."""

import copy
import json
import math

import numpy as np
import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.checkpoint import rng
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError, LossError
from hvd_trainer.optim.replicas import digest
from hvd_trainer.train.lr_range import as_row, lr_range_test, suggest_rate
from tests.fake_comm import run_threads
from tests.properties import given, st
from tests.train.small import loss_fn, make_loader, make_model

RATES = np.logspace(-5, 1, 97)


def falling(steepest, rates=RATES, width=0.5):
    """A loss that falls fastest, per factor, at `steepest`."""
    return (2.3 - 1 / (1 + np.exp(-(np.log10(rates) - math.log10(steepest)) / (width / 2)))).tolist()


@given(st.floats(-3.5, -0.5), st.sampled_from([3, 5, 9, 15]))
def test_steepest_per_factor_not_per_rate(exponent, window):
    found = suggest_rate(RATES, falling(10**exponent), window)
    step = RATES[1] / RATES[0]
    assert 10**exponent / step <= found.rate <= 10**exponent * step
    if window == 3:
        against_rate = RATES[np.gradient(falling(10**exponent), RATES).argmin()]
        assert against_rate < found.rate / 1.5  # what others suggest after the same sweep is too early


def test_noise_does_not_move_it_far():
    rng_ = np.random.default_rng(0)
    noisy = np.array(falling(0.03)) + 0.02 * rng_.normal(size=len(RATES))
    assert 0.01 < suggest_rate(RATES, noisy, window=9).rate < 0.09


def test_what_the_curve_does_not_show():
    rising = suggest_rate([1, 2, 4, 8], [1.0, 1.1, 1.2, 1.3])
    assert rising.rate is None and "falls nowhere" in rising.note
    assert "end higher" in suggest_rate(RATES[:40], falling(1e-3)[:40]).note
    assert "begin lower" in suggest_rate(RATES[40:], falling(1e-4)[40:]).note
    curve = [2.0, 1.9, 1.5, 1.2, 1.1, 1.6, 3.0, 9.0, 5.0, 2.0]  # falling again after it broke
    found = suggest_rate([2.0**i for i in range(10)], curve)
    assert (found.rate, found.lowest, found.note) == (4.0, 8.0, "")


@pytest.mark.parametrize(
    "arguments",
    [([1, 2], [1, 2]), ([1, 2, 3], [1, 2]), ([1, 1, 2], [1, 1, 1]), ([3, 2, 1], [1, 1, 1]), ([1, 2, 3], [1, math.nan, 1]), ([1, 2, 3], [1, 1, 1], 4), ([1, 2, 3], [1, 1, 1], 1)],
    ids=str,
)
def test_curves_that_cannot_be(arguments):
    with pytest.raises(ConfigError):
        suggest_rate(*arguments)


def make(comm, optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), dropout=0.5, **options):
    model = make_model(dropout)
    model.append(torch.nn.BatchNorm1d(1).double())
    model.register_buffer("hidden", torch.zeros(1), persistent=False)
    loader = make_loader(comm, **options)
    return model, ht.DistributedOptimizer(optimizer(model.parameters()), comm, plan=loader.plan, model=model), loader


def everything(model, opt, comm):
    tensors = [*model.parameters(), *model.buffers()]
    return digest([tensors, opt.state_dict(), rng.get_rng_state(comm.device), [m.training for m in model.modules()], opt.steps_done])


@pytest.mark.parametrize("trained", [0, 3])
def test_all_is_as_before_also_in_the_middle_of_a_run(trained):
    """Parameters, buffers (also those no state_dict has), optimizer, random states, and the training that follows."""
    comm = SingleCommunicator()

    def part(model, opt, loader, test):
        def train(steps):
            for _, batch in zip(range(steps), loader.epoch(0)):
                for micro in batch:
                    opt.backward(loss_fn(model, micro.data), last=micro.last)
                opt.step()
                opt.zero_grad()

        torch.manual_seed(5)
        train(trained)
        model[2].eval()
        before = everything(model, opt, comm)
        if test:
            model.hidden += 1
            before = everything(model, opt, comm)
            result = lr_range_test(model, opt, loss_fn, loader, num_steps=12, highest=1.0)
            assert len(result.losses) == 12 and len(set(result.losses)) > 6
            assert everything(model, opt, comm) == before
        model.hidden.zero_()
        train(3)
        return everything(model, opt, comm)

    assert part(*make(comm), test=True) == part(*make(comm), test=False)


def test_rates_rise_by_the_same_factor_and_groups_keep_their_ratio():
    comm, seen = SingleCommunicator(), []
    model = make_model()
    groups = [{"params": model[0].parameters(), "lr": 0.2}, {"params": model[3].parameters(), "lr": torch.tensor(0.1)}]
    loader = make_loader(comm)
    opt = ht.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), comm, plan=loader.plan)
    tensor = opt.param_groups[1]["lr"]

    def watching(model, batch):
        seen.append([float(group["lr"]) for group in opt.param_groups])
        return loss_fn(model, batch)

    result = lr_range_test(model, opt, watching, loader, lowest=1e-4, highest=1e-1, num_steps=7)
    assert [first for first, _ in seen] == pytest.approx(result.rates)
    assert result.rates == pytest.approx(list(np.logspace(-4, -1, 7)))
    assert [second / first for first, second in seen] == pytest.approx([0.5] * 7)
    assert opt.param_groups[1]["lr"] is tensor and float(tensor) == pytest.approx(0.2)  # scaled by batch 4 over 2


def test_the_same_stop_on_all_ranks_and_as_on_one():
    """One rank's data breaks first; the reduced loss decides for both. 7 samples in batches of 3: uneven."""

    def on_rank(comm):
        model, opt, loader = make(comm, dropout=0.0, global_batch=3)
        result = lr_range_test(model[:4], opt, loss_fn, loader, lowest=1e-3, highest=1e3, num_steps=60)
        after = [len(result.losses), opt.steps_done]
        ht.replica_check(model, comm)
        return result, after

    (one, _), *_ = run_threads(1, on_rank)
    (first, _), (second, _), _ = run_threads(3, on_rank)
    assert first == second and first.stopped == one.stopped == "diverged"
    assert len(first.losses) == len(one.losses) < 60
    np.testing.assert_allclose(first.losses, one.losses, rtol=1e-6)
    assert json.loads(json.dumps(as_row(first)))["stopped"] == "diverged"


def test_not_finite_on_one_rank_stops_both():
    def on_rank(comm):
        model, opt, loader = make(comm, dropout=0.0, num_samples=16)

        def breaks(model, batch):
            loss = loss_fn(model, batch)
            if opt.param_groups[0]["lr"] > 1e-3 and comm.rank == 1:
                loss = ht.Weighted(loss.total * float("nan"), loss.weight)
            return loss

        before = digest([*model.parameters(), *model.buffers(), opt.state_dict()])
        result = lr_range_test(model, opt, breaks, loader, num_steps=50)
        assert digest([*model.parameters(), *model.buffers(), opt.state_dict()]) == before
        return result

    first, second = run_threads(2, on_rank)
    assert first == second and first.stopped == "not finite" and max(first.rates) < 1e-3


def test_an_error_puts_back_too():
    comm = SingleCommunicator()
    model, opt, loader = make(comm)
    before = everything(model, opt, comm)
    calls = []

    def breaks(model, batch):
        calls.append(1)
        return loss_fn(model, batch) if len(calls) < 4 else None

    with pytest.raises(LossError):
        lr_range_test(model, opt, breaks, loader)
    assert everything(model, opt, comm) == before and len(calls) == 4


def test_a_loss_that_never_is_finite():
    model, opt, loader = make(SingleCommunicator())
    with pytest.raises(ConfigError, match="not finite after 0 steps"):
        lr_range_test(model, opt, lambda m, b: ht.Weighted(loss_fn(m, b).total * math.inf, 1), loader)


@pytest.mark.parametrize("options", [{"lowest": 0}, {"lowest": 1, "highest": 1}, {"num_steps": 4}, {"diverged_at": 1}, {"highest": math.inf}], ids=str)
def test_options_that_cannot_be(options):
    model, opt, loader = make(SingleCommunicator())
    with pytest.raises(ConfigError, match="lr_range_test"):
        lr_range_test(model, opt, loss_fn, loader, **options)


def test_a_loss_scale_is_put_back():
    model, opt, loader = make(SingleCommunicator(), dropout=0.0)
    scaler = ht.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    scaler.factor(torch.device("cpu"))
    before = copy.deepcopy(scaler.state_dict())
    lr_range_test(model, opt, loss_fn, loader, num_steps=6, highest=1e-3, scaler=scaler)
    assert scaler.state_dict() == before
