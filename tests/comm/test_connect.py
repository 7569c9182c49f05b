"""`init` in one process, and its pure parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_trainer.comm import connect, topology
from hvd_trainer.comm.api import Topology
from hvd_trainer.comm.derived import agree_on
from hvd_trainer.comm.launched import Launched
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import CollectiveError, ConfigError


@pytest.fixture(autouse=True)
def nothing_started(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connect, "_current", None)
    yield
    if connect._current is not None:
        connect._current.close()


def test_one_line(capsys: pytest.CaptureFixture) -> None:
    comm = connect.init()
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and out.startswith(
        "hvd_trainer: 1 rank on 1 node, engine single, backend none (one process), "
    )
    assert (comm.rank, comm.size, comm.engine, comm.backend, comm.timeout_s, comm.checked) == (
        0,
        1,
        "single",
        "none",
        600.0,
        False,
    )


def test_second_start() -> None:
    comm = connect.init(checked=True, timeout_s=5)
    assert comm.checked and comm.timeout_s == 5
    with pytest.raises(ConfigError, match="(?s)called before in this process.*single.*close"):
        connect.init()
    comm.close()
    connect.init().close()
    comm.engine = "mpi"
    connect._current = comm
    with pytest.raises(ConfigError, match="mpi cannot start twice"):
        connect.init()


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "soon", None, True, 1e9])
def test_timeout_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="(?s)timeout_s=.*seconds > 0"):
        connect.init(timeout_s=value)


@pytest.mark.parametrize(("name", "value"), [("TIMEOUT_S", "-1"), ("CHECKED", "yes"), ("BACKEND", "mpl"), ("ENGINE", "mpl")])
def test_variables_are_refused_as_arguments_are(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"HVD_TRAINER_{name}", value)
    with pytest.raises(ConfigError, match=f"(?s){value}.*allowed"):
        connect.init()


def test_timeout_accepted() -> None:
    assert connect.check_timeout("2.5", "HVD_TRAINER_TIMEOUT_S") == 2.5 and connect.check_timeout(3, "") == 3.0


def test_init_method_and_engine() -> None:
    assert connect.engine_that_meets("env://", "auto", 2) == "torch" == connect.engine_that_meets("env://", "torch", 2)
    assert connect.engine_that_meets("env://", "auto", 1) == "auto"  # the same script, alone
    with pytest.raises(ConfigError, match="(?s)engine 'mpi', which finds.*leave init_method out"):
        connect.engine_that_meets("env://", "mpi", 2)
    with pytest.raises(ConfigError, match="(?s)init_method='nowhere'.*tcp://host:port"):
        connect.init(init_method="nowhere")
    with pytest.raises(ConfigError, match="leave init_method out"):
        connect.init(engine="horovod", init_method="tcp://127.0.0.1:1")


def test_a_group_of_the_users_own() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match="(?s)init_process_group.* was called before.*leave that call out"):
            connect.init(engine="torch")
    finally:
        dist.destroy_process_group()


def test_lonely_names_what_was_seen() -> None:
    given, allowed, fix = connect.lonely(SingleCommunicator(), Launched("slurm", 0, 4, 0, 2, {"SLURM_PROCID": "0"}))
    assert (
        "4 processes were started by srun, but single sees 1" in given
        and "SLURM_PROCID=0" in given
        and "mpirun on the PATH" in given
    )
    assert allowed == "4 connected ranks" and "srun --mpi=pmix" in fix


def test_loaded_libraries(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    line = "7f00-7f01 r-xp 00000000 08:01 123                        "
    maps.write_text(
        f"{line}/opt/a b/libmpi.so.40.40.8\n{line}/lib/x/libc.so.6\n{line}/usr/lib/libpmix.so.2\n7f00-7f01 rw-p 0 0 0\n"
    )
    assert connect.loaded_libraries(str(maps)) == ["/opt/a b/libmpi.so.40.40.8", "/usr/lib/libpmix.so.2"]
    assert connect.loaded_libraries(str(tmp_path / "none")) == []


@pytest.mark.parametrize(
    "rank, hosts, expected",
    [
        (0, ["a"], Topology()),
        (1, ["a", "a", "b", "b"], Topology(1, 4, 1, 2, 0, 2)),
        (2, ["a", "a", "b", "b"], Topology(2, 4, 0, 2, 1, 2)),
        (2, ["b", "a", "b"], Topology(2, 3, 1, 2, 0, 2)),  # ranks dealt out in turn
        (1, ["b", "a", "b"], Topology(1, 3, 0, 1, 1, 2)),
    ],
)
def test_topology(rank: int, hosts: list[str], expected: Topology) -> None:
    assert topology.from_hosts(rank, hosts) == expected


def test_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert topology.this_host() == topology.this_host() and topology.this_host()[0]

    def no_proc(*args: object) -> None:
        raise OSError

    monkeypatch.setattr("builtins.open", no_proc)
    assert topology.this_host()[1] == ""


def test_many_different_values_are_cut_short() -> None:
    with pytest.raises(CollectiveError, match="and 12 other values"):
        agree_on(list(range(20)), "seed")
