"""A SLURM of two nodes for the tests of this folder; they are skipped, with the reason, where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import ROOT, environment, missing

HERE = Path(__file__).resolve().parent
PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged", "unshare", "nsenter", "ip", "ssh-keygen")
SBIN = "/usr/sbin:/sbin"
UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class Done:
    """What a command on the cluster printed and its exit code."""

    code: int
    text: str

    @property
    def last(self) -> str:
        """The last word of the output."""
        return self.text.split()[-1]

    def ok(self) -> Done:
        assert self.code == 0, f"exit code {self.code}\n{self.text}"
        return self

    def failed(self, *words: str) -> Done:
        assert self.code != 0, f"exit code 0 where a failure was due\n{self.text}"
        for word in words:
            assert word in self.text, f"{word!r} was not printed\n{self.text}"
        return self


@dataclass(frozen=True)
class Slurm:
    """A running SLURM.

    Args:
        folder: its state; the hosts are `folder/hosts`.
    """

    folder: Path

    def run(
        self,
        *command: object,
        host: str = "head",
        cwd: Path = ROOT,
        timeout_s: int = 90,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """Run a command on a host and wait for it; it is killed after `timeout_s` seconds."""
        variables = {**environment(env), "SLURM_CONF": str(self.folder / "slurm.conf"), "VENV": sys.prefix}
        there = [HERE / "hosts.sh", "on", self.folder / "hosts", host, "timeout", "-k", "5", timeout_s]
        done = subprocess.run(
            [str(word) for word in (*there, *command)],
            cwd=cwd, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        return Done(done.returncode, f"$ {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")

    def batch(self, *words: object, cwd: Path, timeout_s: float = 120, env: Mapping[str, str] | None = None) -> Done:
        """Submit a batch job and wait for its end; its output, and its logs a rank, are the text."""
        out = cwd / "job.out"
        job = self.run("sbatch", "--parsable", "-o", out, *words, cwd=cwd, env=env).ok().last
        deadline = time.monotonic() + timeout_s
        while (state := self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").ok().last) in UNDER_WAY:
            if time.monotonic() > deadline:
                self.run("scancel", job)
                break
            time.sleep(LOOK_EVERY_S)
        files = [out, *sorted((cwd / "logs").rglob("*"))]
        text = "".join(f"--- {path.name}\n{path.read_text()}" for path in files if path.is_file())
        return Done(0 if state == "COMPLETED" else 1, f"job {job} {state}\n{text}")


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    why = why_not()
    if why:
        missing("cluster", why)
    folder = Path(tempfile.mkdtemp(prefix="slurm.", dir="/tmp"))  # short: it holds sockets
    try:
        up = subprocess.run([HERE / "slurm.sh", "up", folder], capture_output=True, text=True, timeout=120)
        if up.returncode:
            missing("cluster", f"SLURM did not come up: {up.stderr[-2000:]}")
        yield Slurm(folder)
    finally:
        subprocess.run([HERE / "slurm.sh", "down", folder], capture_output=True, timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def why_not() -> str:
    """What is missing for a cluster of namespaces; "" where nothing is."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")]
    if absent:
        return f"no {', '.join(absent)} (Debian: apt-get install slurmctld slurmd slurm-client munge openssh-server iproute2)"
    if os.geteuid() != 0:
        return "namespaces need root here"
    unshared = subprocess.run(
        ["unshare", "--net", "--uts", "--pid", "--mount", "--ipc", "--fork", "true"], capture_output=True
    )
    return "" if unshared.returncode == 0 else "this machine makes no namespaces (unshare fails)"


@pytest.fixture(scope="session")
def pmix(slurm: Slurm) -> None:
    """Skips where this SLURM cannot start Open MPI's ranks."""
    if "pmix" not in slurm.run("srun", "--mpi=list").text or not list(Path("/usr/lib").rglob("libpmix.so")):
        missing("cluster", "SLURM without pmix (Debian: apt-get install libpmix-dev)")


@pytest.fixture(scope="session")
def ssh(slurm: Slurm) -> None:
    """Skips where the nodes have no sshd, which horovodrun needs."""
    if not Path("/usr/sbin/sshd").exists():
        missing("cluster", "no sshd (Debian: apt-get install openssh-server)")
