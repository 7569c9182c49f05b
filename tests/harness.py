"""Starts ranks under a launcher, with a hard time limit, and makes sure that nothing of them is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rank_start import MARK

ROOT = Path(__file__).resolve().parent.parent
LEFT_S = 3.0  # how long a process may outlive its launcher
LAUNCHERS = ("alone", "mpirun", "horovodrun-gloo", "horovodrun-mpi", "torchrun")


@dataclass(frozen=True)
class Result:
    """What a run printed and how it ended.

    Args:
        command: as started.
        code: exit code of the launcher.
        stdout, stderr: of all ranks.
        seconds: from the start to the end of the launcher.
        ended: when the launcher ended, by `time.time()`.
    """

    command: Sequence[str]
    code: int
    stdout: str
    stderr: str
    seconds: float
    ended: float = 0.0

    @property
    def text(self) -> str:
        """Both streams, for searching."""
        return self.stdout + self.stderr

    def ok(self) -> Result:
        """Fail the test, showing every rank's output, unless the exit code is 0; returns self."""
        assert self.code == 0, f"exit code {self.code}\n{self}"
        return self

    def failed(self, *words: str) -> Result:
        """Fail unless the exit code is not 0 and all `words` were printed.

        How long it took is limited by `run_ranks`. A test that claims more measures from the fault on (as test_faults.py
        does): two interpreters that import torch take 4 seconds, and a minute on a busy machine.
        """
        assert self.code != 0, f"exit code 0 where a failure was due\n{self}"
        for word in words:
            assert word in self.text, f"{word!r} was not printed\n{self}"
        return self

    def __str__(self) -> str:
        streams = f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        return f"$ {' '.join(self.command)}\n{streams}\n--- {self.seconds:.1f} s, code {self.code}"


def run_ranks(
    launcher: str = "mpirun",
    np: int = 2,
    args: Sequence[str] = (),
    timeout_s: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run `python args...` on `np` ranks and wait for the end.

    Args:
        launcher: one of `LAUNCHERS`.
        np: ranks; ignored by "alone".
        args: a script and its arguments, or "-m", module, ...
        timeout_s: the test fails, and all processes are killed, after this many seconds.
        env: variables added to the environment.

    Returns:
        A Result, whatever the exit code. The test is skipped where the launcher is not installed (a failure where
        HVD_TRAINER_TESTS_REQUIRE names it), and fails where a process is left.
    """
    variables = environment(env)
    command = [*launch_command(launcher, np, variables), sys.executable, *map(str, args)]
    begin = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        end_all(variables[MARK])
        stdout, stderr = process.communicate()
        pytest.fail(f"not ended after {timeout_s:g} s\n{Result(command, -1, stdout, stderr, time.monotonic() - begin)}")
    result = Result(command, process.returncode, stdout, stderr, time.monotonic() - begin, time.time())
    left = wait_until_gone(variables[MARK])
    if left:
        end_all(variables[MARK])
        pytest.fail(f"processes left: {left}\n{result}")
    return result


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment, with the interpreter's folder first on the PATH and without what a launcher or a test left."""
    dropped = (
        "OMPI_COMM_",
        "PMIX_",
        "PMI_",
        "HOROVOD_",
        "SLURM_",
        "HVD_TRAINER_",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "MASTER_",
        "TORCHELASTIC_",
        "LOCAL_",
        "RANK",
        "WORLD_SIZE",
        "PYTEST_",
    )
    variables = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables.get('PATH', '')}"
    variables["PYTHONPATH"] = str(ROOT)
    variables[MARK] = uuid.uuid4().hex
    if hasattr(os, "getuid") and os.getuid() == 0:
        variables.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    variables.update(extra or {})
    return variables


def launch_command(launcher: str, np: int, variables: Mapping[str, str]) -> list[str]:
    """The launcher's command line, or a skip."""
    if launcher == "alone":
        return []
    if launcher == "mpirun":
        path = need("mpi", "mpirun", variables)
        version = subprocess.run([path, "--version"], env=dict(variables), capture_output=True, text=True).stdout
        return [path, *(["--oversubscribe"] if "Open MPI" in version else []), "-np", str(np)]
    if launcher == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(np), "--no-python"]
    kind = launcher.removeprefix("horovodrun-")
    path = need("horovod", "horovodrun", variables)
    if kind == "gloo":
        return [path, "--gloo", "-np", str(np)]
    need("mpi", "mpirun", variables)
    return [path, "--mpi", "--mpi-args=--oversubscribe", "-np", str(np)]


def need(part: str, program: str, variables: Mapping[str, str]) -> str:
    """The program's path; skips the test without it, or fails it where HVD_TRAINER_TESTS_REQUIRE names the part."""
    path = shutil.which(program, path=variables["PATH"])
    if path is None:
        missing(part, f"{program} is not installed")
    return path


def missing(part: str, reason: str) -> None:
    """Skip, or fail where HVD_TRAINER_TESTS_REQUIRE (such as "horovod,mpi") names the part."""
    if part in os.environ.get("HVD_TRAINER_TESTS_REQUIRE", "").split(","):
        pytest.fail(f"{reason}, and HVD_TRAINER_TESTS_REQUIRE asks for {part}")
    pytest.skip(reason)


def processes_of(mark: str) -> dict[int, str]:
    """Process ids and command lines of what runs with this mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                )
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if line}  # no command line: a zombie, which has ended


def wait_until_gone(mark: str) -> dict[int, str]:
    """What is still there after `LEFT_S` seconds, or as soon as nothing is."""
    deadline = time.monotonic() + LEFT_S
    while (left := processes_of(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def end_all(mark: str) -> None:
    """Kill everything with this mark."""
    for pid in processes_of(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
