"""AdaScale against the vectors, as a rule on several ranks, and its state."""

import copy
import math

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.adascale import gain_ratio, moments
from hvd_trainer.optim.gradient_norms import GradientNorms
from hvd_trainer.optim.noise import gain
from hvd_trainer.optim.scaling import range_warning, scaling_rule
from hvd_trainer.optim.schedules import Timeline
from tests.fake_comm import run_threads
from tests.properties import given, st
from tests.train.small import StopAt, make_loader, make_trainer
from tests.vectors import vector

VECTOR = vector("adascale")
GRADS = torch.tensor(VECTOR.inputs["rank_grads"], dtype=torch.float64)


def test_moments_and_gain():
    local, mean = GRADS.square().sum(1).mean().item(), GRADS.mean(0).square().sum().item()
    sigma2, mu2 = moments(local, mean, len(GRADS), VECTOR.inputs["S"])
    assert (sigma2, mu2) == pytest.approx((VECTOR.expected["sigma2"], VECTOR.expected["mu2"]), rel=VECTOR.rtol)
    assert gain_ratio(sigma2, mu2, VECTOR.inputs["S"]) == pytest.approx(VECTOR.expected["gain"], rel=VECTOR.rtol)


@pytest.mark.parametrize("name", VECTOR.expected["gains"])
def test_gains(name):
    sigma2, mu2, scale = name.split("/")
    assert gain_ratio(float(sigma2), float(mu2), float(scale[2:])) == pytest.approx(VECTOR.expected["gains"][name], rel=VECTOR.rtol)


def norms_with(sigma2, mu2, scale, num_parts=4, weight=8.0):
    """A step whose unbiased moments are these."""
    mean = mu2 + sigma2 / scale
    return GradientNorms((mean + sigma2 * (num_parts - 1) / scale,), (mean,), weight, num_parts)


class Optimizer:
    """The part of a DistributedOptimizer that a rule changes."""

    def __init__(self, lr):
        self.lr_scale, self.param_groups = 1.0, [{"lr": lr}]


def test_the_clock():
    """The vector's rows, one step's moments at a time, each with the base rate of its row."""
    scale, rule = VECTOR.inputs["S"], ht.AdaScale()
    for (sigma2, mu2), base, row in zip(VECTOR.inputs["sequence_sigma2_mu2"], VECTOR.inputs["base_lr"], VECTOR.expected["rows"]):
        rule._average = None  # without averaging
        rule.factor(scale * 64, 64)
        assert rule.tau == pytest.approx(row["tau_before"], rel=VECTOR.rtol)
        assert rule.schedule_at(999, Timeline(10, 30, 5)) == (int(row["tau_before"]), Timeline(40, 120, 5))
        opt = Optimizer(base)
        rule.attach(opt)
        rule.observe(norms_with(sigma2, mu2, scale))
        assert (rule.gain, opt.param_groups[0]["lr"]) == pytest.approx((row["gain"], row["lr"]), rel=VECTOR.rtol)
    assert rule.tau == pytest.approx(VECTOR.expected["tau_end"], rel=VECTOR.rtol)
    assert rule.is_done(2) and not rule.is_done(3)  # 2 steps of 4 times the batch are 8 of the reference run


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=20), st.integers(1, 64))
def test_gain_stays_between_one_and_the_scale(sequence, scale):
    rule = ht.AdaScale()
    rule.factor(scale * 8, 8)
    for sigma2, mu2 in sequence:
        rule.observe(norms_with(sigma2, mu2, scale))
        assert 1 - 1e-9 <= rule.gain <= scale + 1e-9
    assert len(sequence) * (1 - 1e-9) <= rule.tau <= scale * len(sequence) * (1 + 1e-9)


def test_the_gain_is_that_of_the_noise_scale_whatever_the_number_of_parts():
    """Scale 8 from 2 parts: not the number of ranks. A smaller last batch gains what it is worth, in any unit of weight."""
    signal, noise, rule = 2.0, 300.0, ht.AdaScale()
    rule.factor(256, 32)
    for batch in (256, 256, 96, 256, 32):
        rule.observe(GradientNorms((signal + 2 * noise / batch,), (signal + noise / batch,), 10.0 * batch, 2))
        assert rule.gain == pytest.approx(gain(noise / signal, 32, batch), rel=1e-9)


def train(comm, steps, state=None, start=0):
    """A least-squares problem in micro-batches; returns rates, tau and the weights."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(400, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64) + torch.randn(400, generator=generator, dtype=torch.float64)
    w = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    rule, plan = ht.AdaScale(), ht.BatchPlan(16, comm.size, reference_batch=2)
    opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.02, momentum=0.9), comm, lr_scaling=rule, plan=plan)
    if state:
        w.data.copy_(state["w"])
        opt.load_state_dict(state["opt"])
    rates = []
    for step in range(start, steps):
        begin, end = plan.rank_slice(comm.rank)
        rows = slice(16 * step + begin, 16 * step + end)
        for micro in (slice(rows.start, rows.start + 1), slice(rows.start + 1, rows.stop)):
            opt.backward(ht.Weighted((x[micro] @ w - y[micro]).square().sum(), micro.stop - micro.start), last=micro.start != rows.start)
        opt.step()
        opt.zero_grad()
        rates.append(opt.param_groups[0]["lr"])
    return rates, rule.tau, {"w": w.detach().clone(), "opt": opt.state_dict()}


def test_on_two_ranks_and_resumed(capsys):
    (straight, tau, saved), other = run_threads(2, lambda comm: train(comm, 20))
    assert other[:2] == (straight, tau) and torch.equal(other[2]["w"], saved["w"])
    assert 0.02 < max(straight) < 0.16 and len(set(straight)) == 20
    assert tau == pytest.approx(sum(straight) / 0.02)
    half = run_threads(2, lambda comm: train(comm, 9))[0]
    rest, tau_resumed, ended = run_threads(2, lambda comm: train(comm, 20, copy.deepcopy(half[2]), start=9))[0]
    assert half[0] + rest == straight and tau_resumed == tau and torch.equal(ended["w"], saved["w"])
    assert "keeps the factor" not in capsys.readouterr().out
    one = run_threads(1, lambda comm: train(comm, 3))[0]
    assert one[0] != straight[:3] and len(set(one[0])) == 3  # two parts of another size a step: another estimate


class Positions(ht.Callback):
    def __init__(self):
        self.seen = []

    def step_end(self, trainer, report):
        self.seen.append((trainer.rule.tau, trainer.rule.gain, report.lr[0]))


def fit(callbacks, comm=None, resume=None, epochs=3):
    trainer = make_trainer(comm, callbacks=callbacks, lr_scaling="adascale", schedule=lambda step: 1.0 if step < 30 else 0.1)
    trainer.fit(make_loader(trainer.comm, reference_batch=2, num_samples=64, global_batch=16, micro_batch=2), epochs=epochs, resume=resume)
    return trainer


def test_a_trainer_counts_steps_of_the_reference_run(tmp_path):
    """3 epochs of 4 steps are 96 steps of the reference batch: training ends there, and the schedule falls at its 30th."""
    positions = Positions()
    trainer = fit([positions, ht.Checkpoint(tmp_path, every_steps=1), ht.Progress()])
    assert trainer.rule.scale == 8 and trainer.rule.is_done(12) and trainer.rule.tau - trainer.rule.gain < 96
    assert len(positions.seen) == trainer.step > 12  # a gain is at most 8
    for tau, gain_, lr in positions.seen:
        assert lr == pytest.approx(0.1 * gain_ * (1.0 if math.floor(tau - gain_ + 1e-9) < 30 else 0.1))
    stopped, again = tmp_path / "stopped", Positions()
    with pytest.raises(StopAt.Killed):
        fit([StopAt(7), ht.Checkpoint(stopped, every_steps=1)])
    killed_at = int(sorted(stopped.iterdir())[-1].name.rpartition("-")[2])
    fit([again, ht.Checkpoint(stopped)], resume="auto")
    assert again.seen == positions.seen[killed_at:]


def test_a_callback_can_still_stop_it():
    class Stop(ht.Callback):
        def step_end(self, trainer, report):
            if report.step == 5:
                trainer.stop()

    assert fit([Stop()]).step == 5


def test_one_gradient_is_refused_and_overflow_changes_nothing():
    rule = ht.AdaScale()
    rule.factor(64, 8)
    with pytest.raises(ConfigError, match="at least two ranks, or micro-batches"):
        rule.observe(GradientNorms((1.0,), (1.0,), 8, 1))
    rule.observe(norms_with(1.0, 1.0, 8))
    before = rule.state_dict()
    rule.observe(GradientNorms((float("inf"),), (1.0,), 8, 4))
    assert rule.state_dict() == before
    rule.observe(GradientNorms((1.0,), (1.0,), 1, 1))  # a last batch of one sample: the clock goes on with the gain there is
    assert rule.tau == pytest.approx(2 * rule.gain)


def test_by_name_each_optimizer_has_its_own():
    first, second = scaling_rule("adascale"), scaling_rule("adascale")
    assert isinstance(first, ht.AdaScale) and first is not second
    assert isinstance(first, ht.ScalingRule)
    assert "theory is SGD's" in range_warning(first, 64, 8, {"betas": (0.9, 0.99)})
    assert "below the reference" in range_warning(first, 4, 8, {}) and not range_warning(first, 64, 8, {})
    w = torch.nn.Parameter(torch.zeros(1))
    opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), SingleCommunicator(), lr_scaling="adascale", plan=ht.BatchPlan(64, 1, reference_batch=8))
    assert opt.lr_scale == 1.0 and opt.param_groups[0]["lr"] == 0.1
