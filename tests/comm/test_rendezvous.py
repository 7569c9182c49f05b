"""Where the ranks of the torch engine meet, for every launcher; and what is refused."""

from __future__ import annotations

import re

import pytest

from hvd_trainer.comm import rendezvous
from hvd_trainer.comm.launched import Launched
from hvd_trainer.comm.rendezvous import THROUGH_MPI, first_host, method
from hvd_trainer.errors import ConfigError, StartError

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[3-4]"}
NAMESPACE = {"PMIX_NAMESPACE": "prterun-vm-5175@1"}
DAEMON = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NODELIST": "node4"}
LOCAL = "tcp://127.0.0.1:"


@pytest.mark.parametrize(
    "launched, env, expected",
    [
        (Launched(), {}, ""),
        (Launched("torchrun", 1, 2, 1, 2), {}, "env://"),
        (Launched("torchrun", 0, 1, 0, 1), {}, ""),
        (Launched("slurm", 1, 2, 0, 1), STEP, "tcp://node3:29024"),
        (Launched("pmix", 1, 2, 0, 1), {**STEP, "PMIX_NAMESPACE": "slurm.pmix.7.0"}, "tcp://node3:29024"),
        (Launched("pmi2", 1, 2, 1, 2), STEP, "tcp://node3:29024"),
        (Launched("openmpi", 1, 2, 1, 2), NAMESPACE, LOCAL),
        (Launched("openmpi", 1, 2, 0, 1), {**DAEMON, **NAMESPACE}, THROUGH_MPI),  # not the daemon's node and step
        (Launched("openmpi", 1, 2), NAMESPACE, THROUGH_MPI),
        (Launched("hydra", 1, 2, 1, 2), {}, THROUGH_MPI),
        (Launched("horovod-gloo", 1, 2, 1, 2), {"HOROVOD_GLOO_RENDEZVOUS_PORT": "12345"}, LOCAL),
    ],
)
def test_meeting_place(launched: Launched, env: dict[str, str], expected: str) -> None:
    found = method(launched, env)
    assert found.startswith(LOCAL) if expected == LOCAL else found == expected


def test_ranks_agree_and_jobs_differ() -> None:
    places = {method(Launched("openmpi", rank, 4, rank, 4), NAMESPACE) for rank in range(4)}
    other = method(Launched("openmpi", 0, 4, 0, 4), {"PMIX_NAMESPACE": "prterun-vm-5175@2"})
    assert len(places) == 1 and other not in places
    ports = [rendezvous.port_for(f"slurm.{job}.0") for job in range(3000)]
    assert len(set(ports)) > 2600 and 15000 <= min(ports) and max(ports) < 30000


@pytest.mark.parametrize("launched", [Launched("horovod-gloo", 1, 4, 1, 2), Launched("slurm", 1, 2, 0, 1)])
def test_nothing_says_where(launched: Launched) -> None:
    with pytest.raises(StartError, match="(?s)nothing says where they can meet.*HVD_TRAINER_INIT_METHOD=tcp://"):
        method(launched, {})


@pytest.mark.parametrize(
    "given", ["env://", "tcp://node1:29500", "tcp://10.0.0.1:1", "tcp://[::1]:29500", "file:///a/b"]
)
def test_given(given: str) -> None:
    assert method(Launched("slurm", 1, 2, 0, 1), STEP, given) == given


@pytest.mark.parametrize(
    "given",
    ["node1", "node1:29500", "tcp://node1", "tcp://node1:x", "tcp://:29500", "file://a/b", "file:///", "mpi", 3],
)
def test_refused(given: object) -> None:
    with pytest.raises(ConfigError, match=f"(?s){re.escape(repr(given))}.*env://, tcp://host:port or file:///path"):
        rendezvous.check(given)


@pytest.mark.parametrize(
    "nodes, first",
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[1-2]", "node1"),
        ("node[2,5-7],a1", "node2"),
        ("gpu[007-010,12]", "gpu007"),
        ("rack[2-3]n[4-5]", "rack2n4"),
        ("r2-n3.example", "r2-n3.example"),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def no_such_name(name: str) -> str:
    raise OSError(f"no address for {name}")


@pytest.mark.parametrize("resolve", [lambda name: "127.0.1.1", no_such_name])
def test_own_address_is_not_the_loopback(monkeypatch: pytest.MonkeyPatch, resolve) -> None:
    monkeypatch.setattr("socket.gethostbyname", lambda name: "10.0.0.7")
    assert rendezvous.own_address() == "10.0.0.7" == rendezvous.named_address()
    monkeypatch.setattr("socket.gethostbyname", resolve)
    monkeypatch.setattr(rendezvous, "addresses", lambda: {"eth0": "10.0.0.8"})
    assert rendezvous.named_address() == "" and rendezvous.own_address() == "10.0.0.8"
    monkeypatch.setattr(rendezvous, "addresses", dict)
    assert rendezvous.own_address() == "127.0.0.1"


@pytest.mark.parametrize(
    "found, routes, expected",
    [
        ({"eth0": "10.0.0.8"}, {}, "eth0"),
        ({"docker0": "172.17.0.1", "eth0": "10.0.0.8"}, {"node1": "10.0.0.8", "192.0.2.1": "172.17.0.1"}, "eth0"),
        ({"docker0": "172.17.0.1", "eth0": "10.0.0.8"}, {"node1": "127.0.0.1", "192.0.2.1": "10.0.0.8"}, "eth0"),
        ({"docker0": "172.17.0.1", "eth0": "10.0.0.8"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_interface(monkeypatch: pytest.MonkeyPatch, found: dict, routes: dict, expected: str) -> None:
    monkeypatch.setattr(rendezvous, "addresses", lambda: found)
    monkeypatch.setattr(rendezvous, "source_address", lambda target: routes.get(target, ""))
    assert rendezvous.interface("node1") == expected


def test_what_the_system_says() -> None:
    assert all(re.fullmatch(r"[\d.]+", address) for address in rendezvous.addresses().values())
    assert rendezvous.source_address("127.0.0.1") == "127.0.0.1" and rendezvous.source_address("no such host") == ""
    assert 0 < rendezvous.free_port() < 65536
