"""`hvd-trainer bench`, with launches that are pretended; one real one."""

import json

import pytest
from click.testing import CliRunner

from hvd_trainer.cli import bench_place
from hvd_trainer.cli.main import main
from hvd_trainer.launcher.present import Present
from hvd_trainer.mpi_flavour import MpiFlavour
from tests.bench.answers import Pretend
from tests.harness import run_ranks

PRESENT = Present(mpirun="/v/bin/mpirun", mpi=MpiFlavour("Open MPI", "5.0.11"), mpi4py=True, torch=True, cores=2)
MS = {"compute": 1.0, "compute-alone": 1.0, "ours-mpi": 2.0, "raw-mpi": 2.0, "ours-torch": 3.0, "ddp-gloo": 4.0}
TRANSFERS = {"mpi": 0.002, "raw-mpi": 0.001, "copy": 0.001, "torch": 0.1}


@pytest.fixture
def invoke(monkeypatch, tmp_path):
    """Run the command with pretended launches, writing into a folder of its own."""
    monkeypatch.setattr(bench_place, "look", lambda *args: PRESENT)

    def run(starter, *words):
        def start(place, line, command):
            starter.num_ranks = place.ranks
            return starter(line, command)

        monkeypatch.setattr(bench_place.Place, "start", start)
        return CliRunner().invoke(main, ["bench", *words, "--out", str(tmp_path)])

    return run


def the_record(tmp_path):
    (path,) = tmp_path.glob("*.json")
    return json.loads(path.read_text())


def test_step_shows_what_can_run_here_and_writes_everything(invoke, tmp_path):
    done = invoke(Pretend(MS), "step", "--rounds", "2", "--workload", "mlp", "--workload", "wide")
    assert done.exit_code == 0, done.output
    assert "hvd-mpi is left out: Horovod" in done.output and "mpirun -np 2 --map-by slot:PE=1 --bind-to core" in done.output
    record = the_record(tmp_path)
    assert record["result"]["wide"]["ddp-gloo"]["ours_faster"]["mid"] == pytest.approx(5 / 3)
    assert list(record["ms_by_round_and_rank"]["mlp"]) == ["compute", "ours-mpi", "raw-mpi", "compute-alone", "ours-torch", "ddp-gloo"]
    assert record["memory"]["mlp"]["ours-mpi"][0]["peak_rss_bytes"] == 2**30
    assert record["lines"]["ddp-gloo"].endswith("-m hvd_trainer.bench.worker JOB.json") and record["kind"] == "step"
    assert len(list(tmp_path.glob("*.png"))) == 1


def test_step_ends_with_1_where_a_column_does_not_average(invoke):
    done = invoke(Pretend(MS, losses={"ddp-gloo": [2.0]}), "step", "--rounds", "1", "--workload", "mlp", "--no-memory", "--no-plot")
    assert done.exit_code == 1 and "the losses of ddp-gloo differ from those of ours-mpi" in done.output


def test_step_ends_with_1_where_a_column_does_not_run(invoke):
    done = invoke(Pretend(MS, broken=["ddp-gloo"]), "step", "--rounds", "1", "--workload", "mlp", "--no-memory", "--no-plot")
    assert done.exit_code == 1 and "ddp-gloo was left out: it ended with exit code 3" in done.output


def test_the_sweep_has_a_table_of_its_own(invoke, tmp_path):
    words = ("--sweep", "--rounds", "1", "--no-memory", "--no-plot", "--column", "compute", "--column", "ours-mpi")
    done = invoke(Pretend(MS), "step", *words)
    assert done.exit_code == 0 and "cost over compute-only" in done.output
    assert the_record(tmp_path)["cost_over_compute"]["tensors-1000"]["ns_per_param"] == 1000.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("step", "--column", "hvd-best"), "needs Horovod"),
        (("step", "--column", "nobody"), "nobody"),
        (("step", "--workload", "vgg"), "vgg"),
        (("allreduce", "--max-bytes", "3"), "--max-bytes 3"),
        (("scale", "--global-batch", "1"), "--global-batch 1"),
        (("step", "--column", "ours-mpi", "--column", "compute", "--workload", "mlp"), "ValueError: broken"),
    ],
)
def test_what_cannot_work_ends_with_2(invoke, words, message):
    done = invoke(Pretend(MS, broken=["compute"]), *words)
    assert done.exit_code == 2 and message in done.output


def test_dry_run_starts_nothing(invoke, tmp_path):
    for words in (("step",), ("allreduce",), ("scale",)):
        starter = Pretend(MS)
        done = invoke(starter, *words, "--dry-run")
        assert done.exit_code == 0 and "JOB.json" in done.output and not starter.started and not list(tmp_path.iterdir())


def test_allreduce(invoke, tmp_path):
    done = invoke(Pretend(TRANSFERS, losses=dict.fromkeys(TRANSFERS, [3.0, 3.0])), "allreduce", "--max-bytes", "4096", "--rounds", "2")
    assert done.exit_code == 0, done.output
    found = the_record(tmp_path)["result"]
    assert found.keys() == TRANSFERS.keys() and found["mpi"]["4096"]["gb_per_s"] == pytest.approx(4096 / 1.002e6)
    assert len(list(tmp_path.glob("*.png"))) == 1


def test_allreduce_with_a_wrong_sum(invoke):
    done = invoke(Pretend(TRANSFERS, losses=dict.fromkeys(TRANSFERS, [3.0, 2.0])), "allreduce", "--max-bytes", "1024", "--rounds", "1", "--no-plot")
    assert done.exit_code == 1 and "1 KB: torch: the sums are" in done.output


def test_scale(invoke, tmp_path):
    done = invoke(Pretend(MS), "scale", "--workload", "mlp", "--rounds", "2")
    assert done.exit_code == 0, done.output
    record = the_record(tmp_path)
    assert record["settings"] | {"ranks": [1, 2], "global_batch": 64} == record["settings"]
    last = record["result"][-1]
    assert (last["column"], last["way"], last["num_ranks"]) == ("ours-mpi", "strong", 2)


@pytest.mark.mpi
def test_a_real_measurement(tmp_path):
    """All that can share one launch of mpirun; what the other launchers start differs in one function each."""
    words = ["-m", "hvd_trainer", "bench", "step", "--workload", "mlp", "--steps", "16", "--rounds", "1", "--no-memory", "--no-plot"]
    columns = [word for name in ("compute", "ours-mpi", "raw-mpi") for word in ("--column", name)]
    done = run_ranks("alone", args=[*words, *columns, "--out", str(tmp_path)], timeout_s=120).ok()
    rows = the_record(tmp_path)["result"]["mlp"]
    assert rows.keys() == {"compute", "ours-mpi", "raw-mpi"} and rows["raw-mpi"]["loss_differs"] < 1e-4, done
    assert "26,122 parameters" in done.stdout


@pytest.mark.proof
@pytest.mark.horovod
def test_every_column_for_real(tmp_path):
    words = ["-m", "hvd_trainer", "bench", "step", "--workload", "mlp", "--steps", "16", "--rounds", "1"]
    run_ranks("alone", args=[*words, "--out", str(tmp_path)], timeout_s=280).ok()
    record = the_record(tmp_path)
    assert record["failed"] == {} and len(record["result"]["mlp"]) == 12
    assert all(row["peak_pss_bytes"] > 2**26 for row in record["result"]["mlp"].values())


@pytest.mark.proof
@pytest.mark.horovod
def test_every_engine_sums_for_real(tmp_path):
    words = ["-m", "hvd_trainer", "bench", "allreduce", "--max-bytes", "65536", "--rounds", "1"]
    run_ranks("alone", args=[*words, "--out", str(tmp_path)], timeout_s=280).ok()
    assert len(the_record(tmp_path)["result"]) == 7
