"""Pollux' goodput against its vector, and what must hold for any."""

import pytest

from hvd_trainer.cost.goodput import CountedSync, best_micro_batch, efficiency, goodput
from hvd_trainer.errors import ConfigError
from tests.cost.test_step_time import pollux_step
from tests.properties import given, st
from tests.vectors import vector


def test_goodput_vector_rows():
    data = vector("goodput")
    step, sync = pollux_step(data.inputs["perf"])
    reference, noise = data.inputs["M0"], data.inputs["phi"]
    for row in data.expected["rows"]:
        seconds = step.seconds(row["micro"], row["accum"] + 1, sync.seconds(row["nodes"], row["replicas"]))
        assert row["M"] / seconds == pytest.approx(row["throughput"], rel=data.rtol)
        assert efficiency(row["M"], reference, noise) == pytest.approx(row["efficiency"], rel=data.rtol)
        assert goodput(row["M"], seconds, reference, noise) == pytest.approx(row["goodput"], rel=data.rtol)


def test_goodput_vector_best_batch():
    data = vector("goodput")
    step, sync = pollux_step(data.inputs["perf"])
    seconds = sync.seconds(2, 8)
    micro, best = best_micro_batch(lambda m: step.seconds(m, 1, seconds), 8, data.inputs["M0"], data.inputs["phi"], largest=1000)
    assert 8 * micro == data.expected["best_M_8_replicas_2_nodes_no_accum"]
    assert best == pytest.approx(data.expected["best_goodput"], rel=data.rtol)


def test_it_is_the_best_of_every_whole_number_and_of_no_smaller_batch_than_the_reference():
    def step_s(m):
        return 0.01 + (0.001 if m % 7 else 0.0) * m

    micro, best = best_micro_batch(step_s, 4, 32, 100.0, largest=40)
    assert best == max(goodput(4 * m, step_s(m), 32, 100.0) for m in range(8, 41))
    assert best == goodput(4 * micro, step_s(micro), 32, 100.0)
    assert best_micro_batch(lambda m: 1.0 + m**3, 4, 32, 0.0, largest=40)[0] == 8  # small steps are best, but not allowed


@given(st.floats(1, 1e5), st.floats(1, 1e5), st.floats(0, 1e6))
def test_efficiency_is_1_at_the_reference_and_falls(batch, reference, noise):
    assert efficiency(reference, reference, noise) == 1.0
    assert (efficiency(batch, reference, noise) <= 1.0) == (batch >= reference)


def test_no_batch_fits():
    with pytest.raises(ConfigError, match="at least the reference, 64"):
        best_micro_batch(lambda m: 1.0, ranks=2, reference_batch=64, noise_scale=1.0, largest=16)


def test_counted_sync_is_free_for_one():
    sync = CountedSync(0.004, 0.0005, 0.03, 0.002)
    assert sync.seconds(1, 1) == 0.0 and sync.seconds(4, 8) == pytest.approx(0.042)
