"""Training on a SLURM of two nodes: the batch script, every way for ranks to meet, and the message where they do not."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from hvd_trainer.comm.parts import module_exists
from tests.cluster.conftest import Slurm
from tests.harness import ROOT, missing

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TWO_NODES = ["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1"]
SRUN2 = ["srun", "--nodes=2", "--ntasks=2"]
CONTRACT = [sys.executable, "-m", "tests.comm.contract"]
FAULT = [sys.executable, "-m", "tests.comm.fault"]


def digits(slurm: Slurm, folder: Path, start: str, engine: str) -> None:
    """The batch script as a person submits it, with the digits example."""
    words = [*TWO_NODES, ROOT / "launch/train.sbatch", ROOT / "examples/digits.py", "--json", "result.json"]
    env = {"START": start.split()[0], "MPI": start.split()[-1], "LOGS": str(folder / "logs")}
    done = slurm.batch(*words, cwd=folder, env=env).ok()
    assert f"2 ranks on 2 nodes, engine {engine}" in done.text, done.text
    result = json.loads((folder / "result.json").read_text())
    assert result["ranks"] == 2 and result["test_accuracy"] >= 0.97, result
    assert len(list((folder / "logs").iterdir())) >= 2 or start == "mpirun", (
        done.text
    )  # which writes none for a silent rank


def test_batch_srun_pmix(slurm: Slurm, pmix: None, tmp_path: Path) -> None:
    digits(slurm, tmp_path, "srun pmix", "mpi, backend mpi")


def test_batch_horovod_on_gloo(slurm: Slurm, ssh: None, tmp_path: Path) -> None:
    if not module_exists("horovod"):
        missing("horovod", "horovod is not installed")
    digits(slurm, tmp_path, "horovodrun", "horovod, backend gloo")


@pytest.mark.slow
def test_batch_mpirun(slurm: Slurm, tmp_path: Path) -> None:
    digits(slurm, tmp_path, "mpirun", "mpi, backend mpi")


@pytest.mark.slow
def test_batch_srun_without_an_mpi(slurm: Slurm, tmp_path: Path) -> None:
    digits(slurm, tmp_path, "srun none", "torch, backend gloo")


def test_batch_unknown_start(slurm: Slurm, tmp_path: Path) -> None:
    done = slurm.batch(*TWO_NODES, ROOT / "launch/train.sbatch", "x.py", cwd=tmp_path, env={"START": "ssh"})
    done.failed("START=ssh: srun, mpirun or horovodrun")


def test_contract_over_two_nodes(slurm: Slurm, pmix: None) -> None:
    done = slurm.run(*SRUN2, "--mpi=pmix", *CONTRACT).ok()
    assert "engine mpi, backend mpi (started by srun --mpi=pmix" in done.text, done.text


def test_plain_srun_goes_through_torch_and_says_how_to_get_mpi(slurm: Slurm) -> None:
    done = slurm.run("srun", "--nodes=2", "--ntasks=3", *CONTRACT).ok()
    assert "3 ranks on 2 nodes, engine torch, backend gloo (started by srun without --mpi" in done.text, done.text
    assert "srun --mpi=pmix (Open MPI)" in done.text


def test_lonely_ranks_are_told_which_option_to_use(slurm: Slurm) -> None:
    done = slurm.run(*SRUN2, *FAULT, "none", "engine=mpi")
    done.failed("2 processes were started by srun, but mpi sees 1", "srun --mpi=pmix", "SLURM_STEP_NUM_TASKS=2")
    assert done.text.count("StartError") == 1, done.text


def test_a_failing_rank_ends_the_others_without_kill_on_bad_exit(slurm: Slurm) -> None:
    done = slurm.run(*SRUN2, *FAULT, "one-crash", timeout_s=60).failed("ValueError: a crash on rank 1")
    assert done.code != 124, f"it hung\n{done.text}"


def test_torch_under_mpirun_on_two_nodes_meets_through_mpi4py(slurm: Slurm) -> None:
    mpirun = Path(sys.executable).parent / "mpirun"
    if not mpirun.exists():
        missing("mpi", "no Open MPI in the environment")
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks=2", mpirun, "-np", "2", *FAULT, "none", "engine=torch"]
    done = slurm.run(*words, env={"PMIX_NAMESPACE": ""}).ok()
    assert "2 ranks on 2 nodes, engine torch, backend gloo (started by mpirun; as asked)" in done.text, done.text
    assert "came to the end" in done.text, done.text  # the contract of that engine on two nodes is above


@pytest.mark.parametrize("launcher", ["auto", pytest.param("mpirun", marks=pytest.mark.slow)])
def test_launch_in_an_allocation(slurm: Slurm, pmix: None, launcher: str) -> None:
    script = ROOT / "tests/comm/fault.py"
    launch = [sys.executable, "-m", "hvd_trainer", "launch", "--with", launcher, script, "none"]
    done = slurm.run("salloc", "--quiet", "--nodes=2", "--ntasks=2", *launch).ok()
    assert "[0] hvd_trainer: 2 ranks on 2 nodes, engine mpi" in done.text and "[0] came to the end" in done.text, (
        done.text
    )
    assert ("srun --ntasks=2 --mpi=pmix" in done.text) == (launcher == "auto"), done.text


def test_launch_over_ssh(slurm: Slurm, ssh: None) -> None:
    launch = [sys.executable, "-m", "hvd_trainer", "launch", "--with", "mpirun", "--hosts", "node1:1,node2:1"]
    done = slurm.run(*launch, ROOT / "tests/comm/fault.py", "none", env={"HVD_TRAINER_TIMEOUT_S": "33"}).ok()
    assert "[0] hvd_trainer: 2 ranks on 2 nodes, engine mpi" in done.text, done.text
    assert "-x HVD_TRAINER_TIMEOUT_S -x PYTHONPATH" in done.text, done.text


def test_gradients_through_memory_inside_two_nodes_and_messages_between(slurm: Slurm, ssh: None) -> None:
    mpirun = Path(sys.executable).parent / "mpirun"
    if not mpirun.exists():
        missing("mpi", "no Open MPI in the environment")
    words = [mpirun, "--host", "node1:2,node2:2", "-np", "4", "-x", "PYTHONPATH", sys.executable, "-m", "tests.multi.nodes"]
    done = slurm.run(*words, host="node1").ok()
    assert "same bits on 4 ranks" in done.text and "(2 nodes of 2 ranks); each rank updates 1/2" in done.text, done.text


def test_hosts_whose_own_name_is_the_loopback(slurm: Slurm) -> None:
    """As Debian writes /etc/hosts. Gloo goes by the name, and would tell the others to come to 127.0.1.1."""
    debian = '{ echo "127.0.1.1 $0"; cat /etc/hosts; } >/run/hosts; mount --bind /run/hosts /etc/hosts'
    try:
        for node in ("node1", "node2"):
            slurm.run("bash", "-c", debian, node, host=node).ok()
        done = slurm.run(*SRUN2, *FAULT, "none", "timeout_s=20").ok()
        assert "2 ranks on 2 nodes, engine torch" in done.text and "came to the end" in done.text, done.text
    finally:
        for node in ("node1", "node2"):
            slurm.run("umount", "/etc/hosts", host=node)


def test_pmi2(slurm: Slurm) -> None:
    """MPICH's own protocol; with Open MPI alone there is nobody to speak it."""
    if not shutil.which("mpirun.mpich"):
        pytest.skip("no MPICH here (Debian: apt-get install mpich), or mpi4py cannot load it")
    libraries = {"MPI4PY_LIBMPI": next((str(p) for p in Path("/usr/lib").rglob("libmpich.so.12")), "")}
    done = slurm.run(*SRUN2, "--mpi=pmi2", *CONTRACT, env=libraries).ok()
    assert "started by srun --mpi=pmi2" in done.text, done.text
