"""The callback on one and several ranks: the same noise scale for the same micro-batches, in rows, files and checkpoints."""

import json

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads
from tests.train.small import StopAt, make_loader, make_trainer


def fit(comm=None, epochs=5, micro_batch=1, num_samples=64, global_batch=8, callbacks=(), every_steps=1, optimizer=None, **options):
    noise = ht.NoiseScale(every_steps, decay=0.9, window=4)
    trainer = make_trainer(comm, callbacks=[noise, *callbacks], optimizer=optimizer, lr_scaling="none", **options)
    loader = make_loader(trainer.comm, num_samples=num_samples, global_batch=global_batch, micro_batch=micro_batch)
    return noise, trainer.fit(loader, epochs=epochs)


def test_one_rank_with_micro_batches_is_four_ranks():
    """Micro-batches of 2 samples; 4 ranks have one each."""
    single, history = fit(micro_batch=2)
    for noise, rows in run_threads(4, lambda comm: fit(comm, micro_batch=2)):
        assert noise.average.mean().value == pytest.approx(single.average.mean().value, rel=1e-9)
        assert rows[-1]["noise_scale_mean"] == pytest.approx(history[-1]["noise_scale_mean"], rel=1e-9)
    last = history[-1]
    assert last["noise_scale_mean"] > 0
    assert last["noise_scale_low"] <= last["noise_scale"] <= last["noise_scale_high"]


def per_sample(trainer, data):
    """|G|^2 and tr(Sigma) of the data set itself, at the weights there are."""
    grads = []
    for x, y in data:
        loss = (trainer.model(x[None]) - y).square().sum()
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(trainer.model.parameters()))]))
    g = torch.stack(grads)
    return g.mean(0).square().sum().item(), (g - g.mean(0)).square().sum().item() / (len(g) - 1)


def test_the_numbers_are_those_of_the_data_set():
    """With the weights held fixed: 12 epochs of shards that do not overlap against per-sample gradients. Clipping is after."""
    noise = ht.NoiseScale(decay=0.999)
    trainer = make_trainer(callbacks=[noise], lr_scaling="none", optimizer=lambda p: torch.optim.SGD(p, lr=0.0), clip_norm=1e-6)
    loader = make_loader(trainer.comm, num_samples=48, global_batch=8, micro_batch=2)
    trainer.fit(loader, epochs=12)
    signal, trace = per_sample(trainer, loader.dataset)
    now = noise.average.current()
    assert now.noise == pytest.approx(trace, rel=0.15) and now.signal == pytest.approx(signal, rel=0.15)


def test_uneven_batches_and_a_rank_without_data():
    """27 samples in batches of 8: the last of an epoch has 3, for 4 ranks."""
    single, _ = fit(num_samples=27)
    several = run_threads(4, lambda comm: fit(comm, num_samples=27))
    assert all(noise.average.state_dict() == several[0][0].average.state_dict() for noise, _ in several)
    assert several[0][0].average.mean().signal == pytest.approx(single.average.mean().signal, rel=1e-9)
    assert several[0][0].average.num_steps == single.average.num_steps == 20


def test_one_gradient_a_step_is_undetermined(capsys):
    noise, history = fit(micro_batch=None, epochs=2)
    assert [row["noise_scale"] for row in history] == ["undetermined"] * 2
    assert "noise_scale_low" not in history[-1] and noise.average.num_steps == 0
    assert "undetermined: no step with two or more gradients" in capsys.readouterr().out


def test_param_groups_have_columns_of_their_own():
    def two_groups(params):
        first, *rest = params
        return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.1)

    _, history = fit(optimizer=two_groups)
    assert {"noise_scale_group0", "noise_scale_group1"} <= set(history[-1])
    assert "noise_scale_group0" not in fit(epochs=1)[1][-1]


def test_every_few_steps():
    noise, _ = fit(every_steps=3, epochs=3)  # 24 steps
    assert noise.average.num_steps == 8


def test_files_and_progress_say_it(tmp_path, capsys):
    _, history = fit(callbacks=[ht.JsonLines(tmp_path / "log.jsonl"), ht.TensorBoard(tmp_path / "tb"), ht.Progress()])
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["noise_scale_mean"] for row in rows] == [row["noise_scale_mean"] for row in history]
    out = capsys.readouterr().out
    assert "noise_scale_mean undetermined" in out and "gradient noise scale over 40 steps: " in out
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    determined = [row["noise_scale_mean"] for row in history if row["noise_scale_mean"] != "undetermined"]
    assert [event.value for event in events.Scalars("epoch/noise_scale_mean")] == pytest.approx(determined, rel=1e-6)


def test_state_survives_a_kill(tmp_path):
    made = []

    def make(callbacks):
        made.append(ht.NoiseScale(decay=0.9, window=2))
        params = {"micro_batch": 1, "num_samples": 16}
        trainer = make_trainer(callbacks=[made[-1], *callbacks])
        return trainer, make_loader(trainer.comm, **params)

    trainer, loader = make([])
    trainer.fit(loader, epochs=4)
    killed, loader = make([ht.Checkpoint(tmp_path, every_steps=1), StopAt(9)])
    with pytest.raises(StopAt.Killed):
        killed.fit(loader, epochs=4)
    resumed, loader = make([ht.Checkpoint(tmp_path)])
    resumed.fit(loader, epochs=4, resume="auto")
    straight, _, second = made
    assert second.average.num_steps == straight.average.num_steps == 16
    assert second.average.state_dict() == straight.average.state_dict()


def test_doubts_are_said(capsys):
    """A large noise scale in a small set, a linear rule far beyond the noise, batch statistics."""

    class Given(ht.NoiseScale):
        def fit_end(self, trainer):
            for value in (3.0, 60.0):
                print([text[:60] for text in self._doubts(trainer, value)])

    noise = Given()
    trainer = make_trainer(callbacks=[noise])
    trainer.fit(make_loader(trainer.comm, num_samples=64, global_batch=32, reference_batch=2), epochs=1)
    small, large = capsys.readouterr().out.splitlines()[-2:]
    assert "linear scaling by 16 to batch 32" in small and "of only 64 training samples" in large
    trainer.model.append(torch.nn.BatchNorm1d(1))
    assert "batch statistics" in noise._doubts(trainer, None)[0]


@pytest.mark.parametrize("options", [{"every_steps": 0}, {"decay": 1.0}, {"window": 1}], ids=str)
def test_wrong_options(options):
    with pytest.raises(ConfigError):
        ht.NoiseScale(**options)


@pytest.mark.parametrize(("given", "large", "expected"), [(None, 10**9, 1), (None, 1, 8), (3, 1, 3)])
def test_large_models_are_measured_less_often_unless_asked(monkeypatch, given, large, expected):
    monkeypatch.setattr("hvd_trainer.train.callbacks.noise_scale.LARGE_PARAMS", large)
    noise = ht.NoiseScale(given)
    trainer = make_trainer(callbacks=[noise], lr_scaling="none", optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    trainer.fit(make_loader(trainer.comm), epochs=1)
    assert [step for step in range(1, 17) if noise.wants_norms(step)] == list(range(expected, 17, expected))
