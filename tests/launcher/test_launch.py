"""`hvd-trainer launch` with real processes: output, exit codes, signals, nothing left running."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from hvd_trainer.cli.main import main
from hvd_trainer.launcher import start
from hvd_trainer.launcher.start_line import StartLine
from tests.harness import MARK, ROOT, environment, need, run_ranks, wait_until_gone

SCRIPT = """
import os, sys, time
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("RANK", "?"))
print("rank", rank, "arguments", sys.argv[1:], flush=True)
if sys.argv[1] == "exit":
    said = [os.path.join(os.path.dirname(__file__), "said" + name) for name in "01"]
    open(said[int(rank)], "w").close()
    while not all(map(os.path.exists, said)):
        time.sleep(0.01)
    sys.exit(7 if rank == "1" else 0)
if sys.argv[1] == "wait":
    time.sleep(60)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "say.py"
    path.write_text(SCRIPT)
    return str(path)


def launch(*words):
    return run_ranks("alone", 1, ["-m", "hvd_trainer", "launch", *words], timeout_s=60)


@pytest.mark.parametrize(("launcher", "code"), [pytest.param("mpirun", 7, marks=pytest.mark.mpi), ("torchrun", 1)])
def test_each_line_has_its_rank_and_the_exit_code_is_passed_on(launcher, code, script):
    if launcher == "mpirun":
        need("mpi", "mpirun", environment())
    result = launch("-np", "2", "--with", launcher, script, "exit", "--dry-run", "a b")
    arguments = "['exit', '--dry-run', 'a b']"
    said = [line for line in result.stdout.splitlines() if "arguments" in line]
    assert sorted(said) == [f"[{r}] rank {r} arguments {arguments}" for r in (0, 1)], str(result)
    assert f"{sys.executable} " in result.stderr and "'a b'" in result.stderr, str(result)
    assert result.code == code, str(result)


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_all_ranks(number, script):
    variables = environment()
    need("mpi", "mpirun", variables)
    command = [sys.executable, "-m", "hvd_trainer", "launch", "-np", "2", "--with", "mpirun", script, "wait"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        assert process.stdout.readline() and process.stdout.readline()  # both ranks run
        begin = time.monotonic()
        process.send_signal(number)
        process.communicate(timeout=20)
    assert process.returncode != 0 and time.monotonic() - begin < 10
    assert not wait_until_gone(variables[MARK])


def run(code, *, env=None, relabel=lambda text: f"> {text}"):
    """A stand-in for a launcher; returns exit code and both streams."""
    out, err = io.StringIO(), io.StringIO()
    line = StartLine([sys.executable, "-c", code], env or {})
    return start.run(line, os.environ, relabel, out, err), out.getvalue(), err.getvalue()


def test_streams_stay_apart_and_variables_are_set():
    code = "import os, sys; print('a\\nb'); print(os.environ['X'], file=sys.stderr); sys.exit(3)"
    assert run(code, env={"X": "1"}) == (3, "> a\n> b\n", "> 1\n")


def test_a_launcher_that_dies_of_a_signal():
    assert run("import os; os.kill(os.getpid(), 9)")[0] == 137


@pytest.mark.parametrize(
    "handler, expected",
    [("lambda *a: sys.exit(0)", 143), ("lambda *a: sys.exit(5)", 5), ("signal.SIG_IGN", 137)],
)
def test_signal_to_us(monkeypatch, handler, expected):
    """A launcher that ends well, badly, or not at all."""
    monkeypatch.setattr(start, "KILL_AFTER_S", 0.5)

    def ready(text):
        os.kill(os.getpid(), signal.SIGTERM)
        return text

    code = f"import signal, sys, time; signal.signal(signal.SIGTERM, {handler}); print(1, flush=True); time.sleep(30)"
    assert run(code, relabel=ready)[0] == expected
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_second_signal_while_the_first_is_handled(monkeypatch):
    """As `timeout` does it: to us, and at once to our group."""

    class Timer(start.threading.Timer):
        def start(self):
            if not self.is_alive():
                os.kill(os.getpid(), signal.SIGTERM)
            super().start()

    monkeypatch.setattr(start.threading, "Timer", Timer)
    monkeypatch.setattr(start, "KILL_AFTER_S", 30)

    def once(text):
        os.kill(os.getpid(), signal.SIGTERM)
        return text

    assert run("import time; print(1, flush=True); time.sleep(30)", relabel=once)[0] == 143


def test_output_of_a_program():
    assert start.output(sys.executable, "-c", "import sys; print(1); print(2, file=sys.stderr)") == "1\n2\n"
    assert start.output("/nowhere/program") == ""


@pytest.mark.parametrize(
    "words, message",
    [
        (["-np", "0", "SCRIPT"], "-np 0"),
        (["-np", "2"], "no script was given"),
        (["-np", "2", "nothing.py"], "'nothing.py' is not a file"),
        (["SCRIPT"], "the number of ranks is not given"),
        (["-np", "2", "--hosts", "a:x", "SCRIPT"], "'a:x' has no number of slots"),
        (["-np", "2", "--hosts", "a:2", "--hostfile", "SCRIPT", "SCRIPT"], "both --hosts and --hostfile"),
        (["-np", "4", "--hosts", "a:2", "SCRIPT"], "room for 2"),
        (["--with", "torchrun", "--hosts", "a:2,b:2", "SCRIPT"], "torchrun starts none on another"),
    ],
)
def test_refused_before_anything_starts(monkeypatch, words, message, script):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(start, "run", lambda *args: pytest.fail("was started"))
    done = CliRunner().invoke(main, ["launch", *[script if word == "SCRIPT" else word for word in words]])
    assert done.exit_code == 2 and message in done.output, done.output


def test_dry_run_prints_the_command_alone_on_stdout(monkeypatch, script):
    done = launch("-np", "2", "--with", "torchrun", "--dry-run", script, "--lr", "1").ok()
    assert done.stdout.count("\n") == 1 and done.stdout.endswith(f"{script} --lr 1\n")
    assert "torchrun: as asked" in done.stderr


def test_hostfile_gives_the_ranks(tmp_path, script):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=1\n")
    need("mpi", "mpirun", environment())
    done = launch("--hostfile", str(hosts), "--with", "mpirun", "--dry-run", script).ok()
    assert "-np 3 --host a:2,b:1" in done.stdout or "-np 3 -hosts a:2,b:1" in done.stdout
