"""`bench predict`: what its rows say, from measurements that known models would give; and the command around it."""

import json

import pytest
import torch
from click.testing import CliRunner

from hvd_trainer.bench import predict_table, predict_worker
from hvd_trainer.bench.predict import Forecast, parse_ranks, rank_batch, rows, spread_out
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.cli import bench_predict
from hvd_trainer.cli.bench_predict import predict
from hvd_trainer.cost import measure
from hvd_trainer.cost.link import Link, LinkModel
from hvd_trainer.cost.samples import ALLREDUCE, GRADIENT, LOCAL, SEND, STEP, Measurements, MessageSample, StepSample
from hvd_trainer.cost.step_time import Compute, StepTime
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads

BUCKETS = (200_000,) * 10
STEP_MODEL = StepTime(Compute(0.01, 0.001), 0.002)
LINKS = LinkModel(Link(3e-6, 3e-10), Link(1e-4, 1e-8, 1.5))


def measured(places, links=LINKS, step=STEP_MODEL):
    """What would be measured in these (nodes, ranks a node)."""
    messages, steps = [], []
    for nodes, each in places:
        sequences = [(4096,), (32768,), (262144,), (1 << 20,), (4 << 20,), BUCKETS]
        messages += [MessageSample(ALLREDUCE, s, nodes, each, (links.buckets_s(s, nodes, each),)) for s in sequences]
        if (nodes, each) == (2, 1):
            messages.append(MessageSample(SEND, (1 << 20,), 2, 1, (links.between.latency_s + (1 << 20) * links.between.seconds_per_byte,)))
        sync = links.buckets_s(BUCKETS, nodes, each)
        for m in (8, 32, 64):
            steps.append(StepSample(GRADIENT, m, 1, nodes, each, (step.compute.seconds(m),)))
            steps.append(StepSample(LOCAL, m, 1, nodes, each, (step.seconds(m),)))
            steps.append(StepSample(STEP, m, 1, nodes, each, (step.seconds(m, 1, sync),)))
    return Measurements("made", "mpi", "mpi", BUCKETS, tuple(messages), tuple(steps), ({"rank_batch": 32},))


@pytest.fixture(scope="module")
def two_hosts():
    return Forecast(measured([(2, 1)]), num_draws=8)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_two_hosts_predict_more_within_ten_percent(two_hosts, ranks):
    row = two_hosts.row(ranks, 1, 16)
    truth = STEP_MODEL.seconds(16, 1, LINKS.buckets_s(BUCKETS, ranks, 1))
    assert row.step.value == pytest.approx(truth, rel=0.1)
    assert row.efficiency.value == pytest.approx(STEP_MODEL.seconds(16) / truth, rel=0.1)
    assert row.step.low <= row.step.value <= row.step.high
    assert row.samples_per_s == pytest.approx(16 * ranks / row.step.value)


def test_rows_say_where_they_come_from(two_hosts):
    assert two_hosts.row(1, 1, 16).basis == two_hosts.row(2, 1, 16).basis == "measured"
    assert two_hosts.row(4, 1, 16).basis == "extrapolated from 2 nodes"
    assert two_hosts.row(2, 1, 256).basis == "extrapolated micro-batch beyond 8..64"
    both = Forecast(measured([(1, 2), (2, 2), (4, 2)]), num_draws=2)
    assert both.row(6, 2, 16).basis == "interpolated"
    # One rank alone has no messages, whatever the links.
    assert two_hosts.row(1, 1, 16).step.value == pytest.approx(STEP_MODEL.seconds(16), rel=0.05)


def test_a_link_that_was_not_measured_is_assumed_and_said():
    one_node = measured([(1, 2)])
    with pytest.raises(ConfigError, match="between nodes"):
        Forecast(one_node, num_draws=2).row(4, 2, 16)
    guessed = Forecast(one_node, Link(1e-4, 1e-8), num_draws=2)
    assert guessed.row(2, 2, 16).basis == "measured"
    assert guessed.row(4, 2, 16).basis == "assumed link; extrapolated from 1 node"
    assert any("assumed, not measured" in line for line in predict_table.notes(guessed))
    assert guessed.as_dict()["links"]["assumed"]


def test_a_measured_link_is_not_replaced():
    kept = Forecast(measured([(2, 1)]), Link(1.0, 1.0), num_draws=2)
    assert not kept.links.assumed and kept.row(2, 1, 16).step.value < 1.0


def test_strong_scaling_divides_the_batch(two_hosts):
    found = rows(two_hosts, [1, 2, 8], 1, 64, 256)
    assert [(row.micro_batch, row.accumulation) for row in found] == [(64, 4), (64, 2), (32, 1)]
    assert found[0].step.value > found[1].step.value > found[2].step.value


def test_numbers_from_the_command_line():
    assert parse_ranks(" 2, 8") == [2, 8]
    for text in ("", "2,,8", "0", "2;8", "two"):
        with pytest.raises(ConfigError, match="--ranks"):
            parse_ranks(text)
    with pytest.raises(ConfigError, match="4 or 6 ranks"):
        spread_out(5, 2)
    with pytest.raises(ConfigError, match="at least 8"):
        rank_batch(8, 32, 4)


def test_the_command_reads_measurements_and_its_own_record(tmp_path):
    file = tmp_path / "found.json"
    file.write_text(measured([(2, 1)]).as_json())
    arguments = ["--from-json", file, "--ranks", "2,4", "--micro-batch", "16", "--out", tmp_path / "a"]
    done = CliRunner().invoke(predict, [str(word) for word in arguments])
    assert done.exit_code == 0, done.output
    assert "extrapolated from 2 nodes" in done.output and "0.8 Gbit/s, an exchange 1.5x (measured on 2 nodes)" in done.output
    (path,) = (tmp_path / "a").iterdir()
    record = json.loads(path.read_text())
    assert [row["ranks"] for row in record["result"]] == [2, 4] and record["kind"] == "predict"
    again = CliRunner().invoke(predict, ["--from-json", str(path), "--ranks", "2", "--out", str(tmp_path / "b")])
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "x"], "--ranks x"),
        (["--link", "fast"], "--link fast"),
        (["--workload", "nothing"], "workload 'nothing'"),
        (["--hosts", "a:x"], "no number of slots"),
    ],
)
def test_wrong_arguments_end_before_anything_is_measured(monkeypatch, arguments, words):
    monkeypatch.setattr(bench_predict, "measure_with_launches", lambda asked: pytest.fail("it was started"))
    done = CliRunner().invoke(predict, arguments)
    assert done.exit_code == 2 and words in done.stderr


def test_a_file_without_measurements_is_named(tmp_path):
    file = tmp_path / "x.json"
    file.write_text("{}")
    done = CliRunner().invoke(predict, ["--from-json", str(file)])
    assert done.exit_code == 2 and "x.json holds no measurements" in done.stderr


def test_a_launch_that_fails_shows_its_end(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ended = bench_predict.start.Ended(3, "one\nno module named torch")
    monkeypatch.setattr(bench_predict.start, "run", lambda argv, env: ended)
    done = CliRunner().invoke(predict, ["--workload", "mlp"])
    assert done.exit_code == 2
    assert "2 ranks on 1 host ended with exit code 3" in done.stderr and "no module named torch" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_worker_measures_what_the_forecast_needs(monkeypatch):
    """Two ranks as threads, on a small model: messages, the three kinds of steps, and a prediction from them."""
    monkeypatch.setattr(measure, "SWEEP", ((4096, 2), (262144, 1)))
    monkeypatch.setattr(measure, "SHORTEST_S", 1e-5)
    workload = Workload("mlp", "")
    found = run_threads(2, lambda comm: predict_worker.measure_here(comm, workload, (4, 8), 0.0, bucket_bytes=1 << 16))
    assert found[0].messages == found[1].messages and found[0].steps == found[1].steps
    assert {(s.kind, s.micro_batch) for s in found[0].steps} == {(k, m) for k in (GRADIENT, LOCAL, STEP) for m in (4, 8)}
    # 26,122 numbers, in buckets of 16,384.
    assert sum(found[0].buckets) == 4 * 26_122 + predict_worker.NUMBERS_BYTES and len(found[0].buckets) > 2
    row = Forecast(found[0], Link(1e-3, 1e-8), num_draws=2).row(4, 2, 8)
    # The link alone takes more than 4 ms. A step is not compared with it: both were measured here, each with its own noise.
    assert row.nodes == 2 and row.sync.value > 4e-3 and 0 < row.step.low <= row.step.value <= row.step.high


def test_batches_of_any_size_and_shape():
    batches = [(torch.arange(4), {"y": torch.arange(4)}, "label") for _ in range(2)]
    x, more, label = predict_worker.resized(batches, 10)
    assert len(x) == len(more["y"]) == 10 and label == "label"
    assert predict_worker.num_samples({"y": torch.zeros(5, 2)}) == 5
    with pytest.raises(ConfigError, match="a batch of str"):
        predict_worker.num_samples("text")
