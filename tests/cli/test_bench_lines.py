"""The launch lines of the columns, from what is installed."""

import pytest

from hvd_trainer.bench.columns import LINES
from hvd_trainer.cli import bench_lines
from hvd_trainer.launcher.present import Present
from hvd_trainer.mpi_flavour import MpiFlavour

OPEN_MPI = Present(
    mpirun="/v/bin/mpirun", mpi=MpiFlavour("Open MPI", "5.0.11"), mpi4py=True, horovodrun="/v/bin/horovodrun", torch=True, cores=2,
)  # fmt: skip
BINDING = "--binding-args=--bind-to none --map-by slot"


def line(name, **changes):
    present = Present(**{**vars(OPEN_MPI), **changes})
    return bench_lines.build(name, ("-m", "worker", "JOB.json"), 2, 1, present, "/v/bin/python")


def test_ranks_are_bound_and_have_one_thread():
    built = line("mpirun")
    assert "--bind-to core" in " ".join(built.argv) and built.env == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert built.argv[-4:] == ["/v/bin/python", "-m", "worker", "JOB.json"]


def test_the_best_settings_of_horovod_differ_from_mpirun_in_variables_alone():
    best, plain = line("mpirun-best"), line("mpirun")
    assert best.argv == plain.argv
    assert best.env.items() - plain.env.items() == {("OMPI_MCA_mpi_yield_when_idle", "1"), ("HOROVOD_CYCLE_TIME", "0.1")}


@pytest.mark.parametrize(("repaired", "binding"), [(True, []), (False, [BINDING])])
def test_horovodrun_over_mpi_is_as_users_type_it(repaired, binding):
    built = line("horovodrun-mpi", horovod_repaired=repaired)
    assert built.argv == ["/v/bin/horovodrun", "--mpi", "-np", "2", *binding, "/v/bin/python", "-m", "worker", "JOB.json"]


def test_horovodrun_over_gloo_gets_nothing_of_mpi():
    built = line("horovodrun-gloo", horovod_repaired=False, cores=1)
    assert built.argv[:4] == ["/v/bin/horovodrun", "--gloo", "-np", "2"] and built.argv[4] == "/v/bin/python"


def test_torchrun_takes_the_worker_as_a_module():
    assert line("torchrun").argv[-5:] == ["--tee", "3", "-m", "worker", "JOB.json"]


def test_what_is_missing_is_named():
    assert set(bench_lines.available(OPEN_MPI).values()) == {""}
    nothing = bench_lines.available(Present())
    assert list(nothing) == list(LINES) and all(nothing.values())
    only_torch = bench_lines.available(Present(torch=True))
    assert [name for name, missing in only_torch.items() if not missing] == ["torchrun"]


def test_settings_of_the_user_reach_no_column_but_our_own_variables_do():
    env = {"HOROVOD_FUSION_THRESHOLD": "0", "OMPI_MCA_mpi_yield_when_idle": "1", "HVD_TRAINER_CHECKED": "1", "PATH": "/bin"}
    assert bench_lines.clean(env) == {"HVD_TRAINER_CHECKED": "1", "PATH": "/bin"}
