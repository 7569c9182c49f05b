"""Mixed precision: autocast, and skips of float16 that are decided for all ranks."""

import copy

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError
from hvd_trainer.train.snapshot import take_snapshot
from tests.fake_comm import run_threads
from tests.train.small import make_loader, make_trainer


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    def rank(comm):
        w = torch.nn.Parameter(torch.ones(2))
        opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1), comm, lr_scaling="none")
        scaler = ht.GradScaler("cpu", init_scale=2.0**10)
        history = []
        for step in range(3):
            overflow = comm.rank == 1 and step == 1
            hook = w.register_hook(lambda grad, overflow=overflow: grad * (float("inf") if overflow else 1.0))
            opt.backward(ht.Weighted(w.sum(), 1), scaler=scaler)
            hook.remove()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            history.append((w.detach().clone(), scaler.get_scale(), opt.steps_done))
        return history

    first, second = run_threads(2, rank)
    for (w, scale, done), (other_w, other_scale, other_done) in zip(first, second):
        assert torch.equal(w, other_w)
        assert (scale, done) == (other_scale, other_done)
    assert [scale for _, scale, _ in first] == [2.0**10, 2.0**9, 2.0**9]
    assert [done for *_, done in first] == [1, 1, 2]
    assert torch.equal(first[0][0], first[1][0])


def test_scaled_and_unscaled_float32_take_the_same_steps():
    """Scales are powers of two, so nothing but an overflow may change a bit."""
    results = []
    for scaler in (None, ht.GradScaler("cpu")):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 5))
        opt = ht.DistributedOptimizer(torch.optim.SGD([w], lr=0.1, momentum=0.9), SingleCommunicator())
        for _ in range(4):
            opt.backward(ht.Weighted(w.square().sum(), 3), scaler=scaler)
            if scaler:
                scaler.unscale_(opt)
                opt.clip_grad_norm_(0.2)
                scaler.step(opt)
                scaler.update()
            else:
                opt.clip_grad_norm_(0.2)
                opt.step()
            assert opt.last_loss.weight == 3
            opt.zero_grad()
        results.append(w.detach().clone())
    assert torch.equal(*results)


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 3e-2), ("fp16", 5e-3)])
def test_trainer_stays_near_float32(precision, tolerance):
    """Documented in docs/same-answer.md: the error of each against float32 after 12 steps."""
    def train(precision, comm):
        trainer = make_trainer(comm, precision=precision)
        trainer.model.float()
        if precision == "fp16":
            trainer.scaler = ht.GradScaler("cpu", init_scale=2.0**8)  # the usual 2^16 would skip the first of 12 steps
        trainer.loss_fn = lambda model, batch: ht.Weighted((model(batch[0].float()).float() - batch[1].float()).square().sum(), len(batch[0]))
        return trainer.fit(make_loader(comm), epochs=3), copy.deepcopy(trainer.model.state_dict())

    exact_history, exact = train("float32", SingleCommunicator())
    ranks = run_threads(2, lambda comm: train(precision, comm))
    for name, value in ranks[0][1].items():
        assert torch.equal(value, ranks[1][1][name])
        assert (value - exact[name]).abs().max() <= tolerance * exact[name].abs().max()
    assert ranks[0][0][-1]["loss"] == pytest.approx(exact_history[-1]["loss"], rel=10 * tolerance)


def test_fp16_resumes_with_its_scale(tmp_path):
    for steps in (2, 5):
        trainer = make_trainer(callbacks=[ht.Checkpoint(tmp_path)], precision="fp16")
        trainer.fit(make_loader(trainer.comm), steps=steps, resume="auto")
        if steps == 2:
            trainer.scaler.update(128.0)
            state, manifest = take_snapshot(trainer)
            trainer.callbacks[0].store.save(2, state, manifest)
    assert trainer.scaler.get_scale() == 128.0


def test_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="bf16"):
        make_trainer(precision="int8")
