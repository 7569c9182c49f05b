"""Who started us, from environments as launchers make them (seen on Open MPI 5, Horovod 0.28.1, SLURM 22.05)."""

from __future__ import annotations

import pytest

from hvd_trainer import env as environment
from hvd_trainer.comm.launched import Launched, read, tasks_on_node
from hvd_trainer.errors import ConfigError

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "3",
    "PMIX_NAMESPACE": "prterun-vm-5175@1",
}
GLOO = {
    "HOROVOD_RANK": "1",
    "HOROVOD_SIZE": "2",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_CONTROLLER": "gloo",
}
HOROVODRUN = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib", "OMPI_MCA_btl_tcp_if_include": "lo", "NCCL_SOCKET_IFNAME": "lo"}
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_NPROCS": "8", "SLURM_LOCALID": "0"}
PMIX = {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
PMI2 = {"PMI_RANK": "2", "PMI_SIZE": "3", "PMI_FD": "5"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
# under mpirun in an allocation the ranks see the daemon's SLURM variables
DAEMON = {**STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}


@pytest.mark.parametrize(
    "env, expected",
    [
        ({}, Launched()),
        (OPENMPI, Launched("openmpi", 3, 4, 1, 2)),
        ({**OPENMPI, **HOROVODRUN}, Launched("openmpi", 3, 4, 1, 2, by_horovodrun=True)),
        ({**OPENMPI, **HOROVODRUN, "NCCL_SOCKET_IFNAME": "^lo,docker0"}, Launched("openmpi", 3, 4, 1, 2)),
        ({**HYDRA, **HOROVODRUN}, Launched("hydra", 1, 2, 1, 2)),
        (GLOO, Launched("horovod-gloo", 1, 2, 1, 2)),
        ({**OPENMPI, **GLOO}, Launched("horovod-gloo", 1, 2, 1, 2)),
        ({**DAEMON, **OPENMPI}, Launched("openmpi", 3, 4, 1, 2)),
        ({**DAEMON, **HYDRA}, Launched("hydra", 1, 2, 1, 2)),
        ({**DAEMON, **GLOO}, Launched("horovod-gloo", 1, 2, 1, 2)),
        ({**DAEMON, **TORCHRUN}, Launched("torchrun", 1, 2, 1, 2)),
        ({**STEP, **PMIX}, Launched("pmix", 2, 3, 0, 1)),
        ({**STEP, **PMI2}, Launched("pmi2", 2, 3, 0, 1)),
        (STEP, Launched("slurm", 2, 3, 0, 1)),
        (HYDRA, Launched("hydra", 1, 2, 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Launched("hydra", 1, 2)),
        (TORCHRUN, Launched("torchrun", 1, 2, 1, 2)),
        ({**OPENMPI, **TORCHRUN}, Launched("openmpi", 3, 4, 1, 2)),
        (BATCH, Launched()),  # a batch shell was started once
        ({**BATCH, "SLURM_STEP_ID": "4294967291", "SLURM_STEP_NUM_TASKS": "8"}, Launched()),  # the batch step itself
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launched()),  # without an address to meet at, not torchrun's
        ({"OMPI_COMM_WORLD_RANK": "0"}, Launched()),
        ({"OMPI_COMM_WORLD_RANK": "x", "OMPI_COMM_WORLD_SIZE": "2"}, Launched()),
        ({"PMI_RANK": "5", "PMI_SIZE": "2"}, Launched()),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, Launched("openmpi", 3, 4)),
    ],
)
def test_launcher(env: dict[str, str], expected: Launched) -> None:
    assert read({"HOME": "/root", "PATH": "/bin", **env}) == expected


def test_what_was_seen_is_kept_for_messages() -> None:
    seen = read({**OPENMPI, "HOME": "/root", "OMPI_MCA_pml": "ob1"}).seen
    assert (
        seen["OMPI_COMM_WORLD_SIZE"] == "4"
        and seen["PMIX_RANK"] == "3"
        and "HOME" not in seen
        and "OMPI_MCA_pml" not in seen
    )
    assert read({**OPENMPI}).by_mpi and not read(GLOO).by_mpi
    assert read({**OPENMPI, **HOROVODRUN}).started_by == "by horovodrun over MPI" and read(OPENMPI).started_by == "by mpirun"


@pytest.mark.parametrize(
    "text, node, expected",
    [
        ("2(x3),1", "2", 2),
        ("2(x3),1", "3", 1),
        ("4", "0", 4),
        ("4", "1", None),
        ("", "0", None),
        ("2(y)", "0", None),
        ("4", "", None),
    ],
)
def test_tasks_on_node(text: str, node: str, expected: int | None) -> None:
    assert tasks_on_node({"SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": node}) == expected


def test_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment.own_setting("ENGINE", "auto") == ("auto", "")
    assert not environment.checked(None) and environment.checked(True)
    monkeypatch.setenv("HVD_TRAINER_ENGINE", " mpi ")
    monkeypatch.setenv("HVD_TRAINER_CHECKED", "0")
    assert environment.own_setting("ENGINE", "auto") == ("mpi", "HVD_TRAINER_ENGINE")
    assert not environment.checked(True)
    monkeypatch.setenv("HVD_TRAINER_CHECKED", "maybe")
    with pytest.raises(ConfigError, match="HVD_TRAINER_CHECKED=maybe"):
        environment.checked(None)


def test_defaults_leave_what_the_user_set() -> None:
    env = {"OMPI_MCA_mpi_yield_when_idle": "0"}
    environment.set_default("OMPI_MCA_mpi_yield_when_idle", "1", env)
    environment.set_default("OTHER", "1", env)
    assert env == {"OMPI_MCA_mpi_yield_when_idle": "0", "OTHER": "1"}
    assert environment.user_threads({"MKL_NUM_THREADS": " 3 "}) == "MKL_NUM_THREADS=3"
    assert environment.user_threads({"OMP_NUM_THREADS": ""}) == ""
    by_torchrun = {"TORCHELASTIC_RUN_ID": "none", "OMP_NUM_THREADS": "1"}  # which torchrun sets whatever the cores
    assert environment.user_threads(by_torchrun) == ""
    assert environment.user_threads({**by_torchrun, "OMP_NUM_THREADS": "4"}) == "OMP_NUM_THREADS=4"
    assert environment.user_threads({**by_torchrun, "MKL_NUM_THREADS": "1"}) == "MKL_NUM_THREADS=1"
    assert environment.visible_devices({"CUDA_VISIBLE_DEVICES": "1"}) == "1" and environment.visible_devices({}) is None
