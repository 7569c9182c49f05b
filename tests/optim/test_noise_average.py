"""Averages over a run: without bias, bounded, resumable; the clock-weighted mean by its definition."""

import numpy as np
import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.gradient_norms import GradientNorms
from hvd_trainer.optim.noise_average import MAX_WINDOWS, NoiseAverage, RunningAverage
from tests.properties import given, st


def draw(signal, noise, batch, num_parts, num, seed=0, dim=20, group_split=None):
    """Norms of `num` steps whose local gradients are normal around a fixed one."""
    rng = np.random.default_rng(seed)
    true = np.sqrt(signal / dim)
    g = true + rng.normal(size=(num, num_parts, dim)) * np.sqrt(noise / dim / (batch / num_parts))
    parts = [slice(None)] if group_split is None else [slice(group_split), slice(group_split, None)]
    local = [(g[..., part] ** 2).sum(-1).mean(1) for part in parts]
    mean = [(g.mean(1)[..., part] ** 2).sum(-1) for part in parts]
    return [GradientNorms(tuple(a[i] for a in local), tuple(m[i] for m in mean), batch, num_parts) for i in range(num)]


def collect(steps, batch, average=None, **options):
    average = average or NoiseAverage(**options)
    for step, norms in enumerate(steps, average.num_steps + 1):
        assert average.add(norms, batch, step)
    return average


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.floats(0, 0.99))
def test_moving_average_is_the_weighted_mean(values, decay):
    average = RunningAverage(decay)
    for value in values:
        average.add([value, 2 * value])
    weights = decay ** np.arange(len(values) - 1, -1, -1.0)
    weights /= weights.sum()
    assert average.mean == pytest.approx([weights @ values, 2 * (weights @ values)], rel=1e-9, abs=1e-9)
    assert average.effective_count == pytest.approx(1 / (weights**2).sum())


def test_plain_mean_first_then_the_decay():
    average = RunningAverage(0.75, plain_first=True)
    for value in (1.0, 2.0, 3.0, 4.0):
        average.add([value])
    assert average.mean == [2.5]
    average.add([6.5])
    assert average.mean == [3.5]


def test_now_and_over_the_run():
    average = collect(draw(1.0, 200.0, 64, 4, 600, group_split=5), 64)
    assert average.current().value == pytest.approx(200, rel=0.2)
    assert average.mean().value == pytest.approx(200, rel=0.1)
    for estimate in (average.current(), average.mean()):
        assert estimate.low < 200 < estimate.high
    for group, share in ((0, 0.25), (1, 0.75)):
        assert average.current(group).signal == pytest.approx(share, rel=0.25)
        assert average.mean(group).value == pytest.approx(200, rel=0.2)


def test_intervals_of_both_cover_the_truth():
    runs = [collect(draw(1.0, 100.0, 64, 2, 160, seed), 64, decay=0.98) for seed in range(150)]
    for kind in ("current", "mean"):
        found = [getattr(run, kind)() for run in runs]
        determined = [e for e in found if e.value is not None]
        assert len(determined) > 140
        assert sum(e.low <= 100 <= e.high for e in determined) / len(determined) > 0.9


def test_clock_weighted_mean_by_its_definition():
    """Noise scale 20 for the first half, 500 for the second, at batch 64: the second half's steps advance less."""
    average = collect(draw(1.0, 20.0, 64, 4, 320, seed=1) + draw(1.0, 500.0, 64, 4, 320, seed=2), 64)
    scales = np.array([w.noise[-1] / w.signal[-1] for w in average.windows])
    clock = 1 / (1 + scales / 64)
    assert average.mean().value == pytest.approx((clock * scales).sum() / clock.sum(), rel=1e-9)
    p = [1 / (1 + b / 64) for b in (20, 500)]
    assert average.mean().value == pytest.approx((p[0] * 20 + p[1] * 500) / sum(p), rel=0.15)
    assert average.current().value == pytest.approx(500, rel=0.5)  # now, not the mean


def test_windows_are_joined_and_cover_every_step():
    average = collect(draw(1.0, 100.0, 32, 2, 2000), 32, window=4)
    assert MAX_WINDOWS / 2 <= len(average.windows) <= MAX_WINDOWS
    sizes = [w.num_steps for w in average.windows]
    assert len(set(sizes)) == 1 and [w.first_step for w in average.windows] == list(range(1, sum(sizes) + 1, sizes[0]))
    assert 2000 - sum(sizes) < sizes[0]
    assert average.mean().num_steps > 2000 - sizes[0]


@pytest.mark.parametrize("cut", [1, 7, 40, 333])
def test_state_goes_on_where_it_was(cut):
    import json

    steps = draw(1.0, 100.0, 32, 2, 400)
    straight, first = collect(steps, 32, window=2), collect(steps[:cut], 32, window=2)
    second = NoiseAverage(window=2)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    collect(steps[cut:], 32, second)
    assert second.state_dict() == straight.state_dict()
    assert (second.mean(), second.current()) == (straight.mean(), straight.current())


def test_steps_that_tell_nothing():
    average = NoiseAverage()
    assert not average.add(GradientNorms((1.0,), (1.0,), 8, 1), 8, 1)
    assert not average.add(GradientNorms((float("inf"),), (1.0,), 8, 2), 8, 2)
    assert average.num_steps == 0
    assert "ranks or micro-batches" in str(average.current()) and "ranks or micro-batches" in str(average.mean())
    average.add(GradientNorms((2.0,), (1.0,), 8, 2), 8, 3)
    assert "one step" in str(average.current()) and "less than a window" in str(average.mean())


def test_a_new_param_group_starts_over():
    average = collect(draw(1.0, 100.0, 32, 2, 50), 32)
    average.add(GradientNorms((2.0, 2.0), (1.0, 1.5), 32, 2), 32, 51)
    assert (average.num_steps, average.num_groups) == (1, 2)


def test_the_unit_is_samples_whatever_the_loss_is_weighted_by():
    """Losses weighted by tokens, 10 a sample."""
    by_samples = draw(1.0, 100.0, 32, 2, 200)
    by_tokens = [GradientNorms(n.local_sq, n.mean_sq, 10 * n.weight, n.num_parts) for n in by_samples]
    assert collect(by_tokens, 32).mean() == collect(by_samples, 32).mean()


def test_options_that_cannot_be():
    for options in ({"decay": 1.0}, {"decay": -0.1}, {"window": 1}):
        with pytest.raises(ConfigError):
            NoiseAverage(**options)
