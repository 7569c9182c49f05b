"""benchmarks/run.py writes the whole record, with launches that are pretended; the bars are judged as they say."""

import json
import sys

import pytest

from benchmarks import bars, report, run
from hvd_trainer.bench import columns, transfers
from hvd_trainer.bench.stats import Spread
from hvd_trainer.cli import bench_place
from hvd_trainer.launcher.present import Present
from hvd_trainer.mpi_flavour import MpiFlavour
from tests.bench.answers import Pretend

PRESENT = Present(
    mpirun="/v/bin/mpirun", mpi=MpiFlavour("Open MPI", "5.0.11"), mpi4py=True, horovodrun="/v/bin/horovodrun", torch=True, cores=2,
)  # fmt: skip
STEPS = [column.name for column in (*columns.COLUMNS, *run.PEERS, *columns.FOR_MEMORY)]
ALL = [*STEPS, *(column.name for column in transfers.COLUMNS)]


@pytest.fixture
def record(monkeypatch, tmp_path):
    """Run the program with pretended launches; returns the folder of its record and what was started."""
    started = []

    def go(*words, broken=()):
        pretend = Pretend(dict.fromkeys(ALL, 3.0) | {"compute": 2.0, "ours-mpi": 1.0, "mpi": 1.0, "raw-mpi": 1.0}, broken=broken)
        pretend.losses = dict.fromkeys(transfers.BY_NAME, [3.0, 3.0])

        def start(place, line, command):
            started.append((place.python, line))
            pretend.num_ranks = place.ranks
            return pretend(line, command)

        monkeypatch.setattr(bench_place, "look", lambda *args: PRESENT)
        monkeypatch.setattr(bench_place.Place, "start", start)
        monkeypatch.setattr(run, "peer_environment", lambda folder: "/peers/bin/python")
        monkeypatch.setattr(run, "peer_versions", lambda python: {"lightning": "9.9"})
        monkeypatch.setattr(sys, "argv", ["run.py", *words, "--rounds", "2", "--out", str(tmp_path)])
        assert run.main() == 0
        (folder,) = tmp_path.iterdir()
        return folder, started

    return go


def test_one_command_writes_everything(record):
    folder, started = record("--max-bytes", "1024", "--workload", "mlp")
    names = sorted(path.name for path in folder.iterdir())
    assert names == sorted(["README.md", *(f"{part}.{end}" for part in run.PARTS for end in ("json", "png"))])
    assert ("/peers/bin/python", "torchrun") in started and (sys.executable, "torchrun") in started
    step = json.loads((folder / "step.json").read_text())
    assert step["versions"]["lightning"] == "9.9" and set(STEPS) == step["lines"].keys()
    assert step["lines"]["ignite"].split()[-2:] == ["hvd_trainer.bench.worker", "JOB.json"]
    page = (folder / "README.md").read_text()
    # Rank 1 takes 1 ms more than what is pretended: compute-only 3, ours 2, the others 4 ms.
    assert "| mlp: compute-only / ours-mpi | at least 1.10 | 1.50 (1.50..1.50) |  | met |" in page
    assert "| mlp: hvd-best / ours-mpi | at least 2.50 | 2.00 (2.00..2.00) | 1.33 (1.33..1.33) | missed, by compute-only too |" in page
    assert "| mlp: hvd-best / ours-horovod-best | at least 1.00 | 1.00 (1.00..1.00) |  | met |" in page
    assert "| allreduce of 1 KB: engine mpi / raw mpi4py | at most 2.00 | 1.00 (1.00..1.00) |  | met |" in page
    # Ranks of 1 and 2 MiB, and a launcher of as many as its line has letters: 6 for mpirun, 8 for torchrun.
    assert "| ours-mpi | 2 MiB | 6 MiB | 4 MiB |  |  |" in page and "| ddp-gloo | 2 MiB | 8 MiB | 6 MiB | 1.00 | 0.818 |" in page
    assert "| ddp-gloo-mpirun | 2 MiB | 6 MiB | 4 MiB | 1.00 | 1.00 |" in page and "ddp-gloo-mpirun" not in step["result"]["mlp"]
    assert "| ours-mpi | strong | 2 |" in page and "tensors-1000" in page


def test_what_failed_is_said(record):
    folder, _ = record("step", "--workload", "mlp", "--no-peers", broken=["ddp-gloo"])
    page = (folder / "README.md").read_text()
    assert "Only 2 rounds" in page
    assert "ddp-gloo was left out: it ended with exit code 3" in page and "ddp-gloo / ours-mpi" not in page


def sweep(ours, bound):
    costs = {f"params-{name}": {"num_params": int(float(name)), "ns_per_param": value} for name, value in ours.items()}
    times = {name: {"ours-mpi": [a], "compute": [b]} for (name, a), b in zip((("tensors-10", bound[0]), ("tensors-1000", bound[1])), bound[2:])}
    return {"cost_over_compute": costs, "round_ms": times}


def test_costs_a_parameter_are_compared_with_the_smallest_models():
    growth, tensors = bars.of_sweep(sweep({"1e6": -1.0, "1e5": 2.0, "1e7": 8.0}, (10.0, 30.0, 5.0, 10.0)))
    assert growth.found.mid == 4.0 and growth.says == "missed" and growth.what.endswith("100,000")
    assert tensors.found.mid == 1.5 and tensors.says == "missed"
    growth, tensors = bars.of_sweep(sweep({"1e5": 2.0, "1e6": -1.0, "1e8": 0.1}, (10.0, 20.0, 5.0, 10.0)))
    assert growth.found.mid == 1.0 and growth.says == "met"
    assert tensors.found.mid == 1.0 and tensors.says == "met"
    assert len(bars.of_sweep(sweep({"1e5": -2.0, "1e6": 1.0}, (10.0, 20.0, 5.0, 10.0)))) == 1  # nothing to compare with


def test_what_compute_only_misses_too_is_said():
    times = {"ours-mpi": [1.0, 1.1], "compute": [0.9, 1.0], "ddp-gloo": [2.0, 2.2], "hvd-best": [2.5, 2.8], "hvd-mpi": [5.5, 6.0]}
    memory = {name: [{"peak_pss_bytes": size}] for name, size in (("ours-mpi", 5), ("compute", 3), ("ddp-gloo", 4))}
    found = {v.what: v for v in bars.of_steps({"round_ms": {"mlp": times}, "memory": {"mlp": memory}})}
    assert found["mlp: ddp-gloo / ours-mpi"].says == "missed, by compute-only too"  # 2.2 of 6
    assert found["mlp: ddp-gloo / ours-mpi"].reach.mid == pytest.approx(2.21, abs=0.01)
    assert found["mlp: hvd-mpi (the better of the defaults) / ours-mpi"].says == "met"
    assert found["mlp: peak PSS of ours-mpi / ddp-gloo's"].says == "missed"  # compute-only stays below
    assert found["mlp: compute-only / ours-mpi"].reach is None


def test_each_launch_line_stands_once():
    assert report.launch_lines({"a": "mpirun x", "b": "torchrun x", "c": "mpirun x"}) == ["# a, c", "mpirun x", "# b", "torchrun x"]


def test_memory_that_was_measured_once_has_no_spread():
    mine, theirs = ([{"peak_pss_bytes": size} for size in sizes] for sizes in ((1, 3), (6, 2)))
    assert bars.over_ranks(mine, theirs) == Spread(0.5, 0.5, 0.5)
