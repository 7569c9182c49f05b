"""What the compiler is told, without compiling."""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

from hvd_trainer.launcher.horovod_build import build
from hvd_trainer.launcher.horovod_build.finish import relative_runpath
from hvd_trainer.launcher.horovod_build.settings import Settings
from tests.launcher.sample import FACTS

ROOT = Path(__file__).resolve().parents[2]


def test_the_wrapper_puts_the_standard_last(tmp_path):
    facts = dataclasses.replace(FACTS, cxx="/bin/echo", standard=20)
    wrapper = build.compiler_wrapper(tmp_path, facts, Settings(cache=tmp_path, path="", cxx="ignored -flag"))
    done = subprocess.run([wrapper, "-std=gnu++14", "a b.cc"], capture_output=True, text=True, check=True)
    assert done.stdout == "-flag -std=gnu++14 a b.cc -std=c++20 -g0\n"


def test_the_environment_holds_decisions_and_no_stray_ones(tmp_path):
    settings = Settings(
        cache=tmp_path, path="/bin", jobs=3, with_mpi=False, base_env={"HOROVOD_GPU_OPERATIONS": "MPI", "HOME": "/h"}
    )
    env = build.environment(FACTS, settings, tmp_path / "cxx")
    assert env["HOROVOD_WITHOUT_MPI"] == env["HOROVOD_WITH_GLOO"] == env["HOROVOD_WITH_PYTORCH"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in env and "HOROVOD_WITH_MPI" not in env
    assert env["MAKEFLAGS"] == "-j3" and env["HOME"] == "/h" and env["CXX"] == str(tmp_path / "cxx")
    assert env["PATH"].split(":")[0] == "/opt/mpi/bin"


def test_library_folders_become_relative_inside_the_environment(tmp_path):
    site = Path("/v/lib/python3.11/site-packages")
    found = relative_runpath(
        f"/v/lib:/v/lib/python3.11/site-packages/torch/lib:{tmp_path}:/gone/lib:/v/lib",
        Path("horovod/torch/mpi_lib.so"),
        site,
        Path("/v"),
    )
    assert found == f"$ORIGIN/../../../..:$ORIGIN/../../torch/lib:{tmp_path}"


def test_a_stopped_build_leaves_no_process(tmp_path):
    """A pip that never ends, under an installer that is told to stop once it has seen a line of pip's: it is waiting then."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nsleep 60 & echo child $!\nwait\n")
    fake.chmod(0o755)
    code = """if True:
        import signal, sys
        from pathlib import Path
        from hvd_trainer.launcher.horovod_build import build
        from hvd_trainer.launcher.horovod_build.progress import Progress
        from hvd_trainer.launcher.horovod_build.settings import Settings
        folder = Path(sys.argv[1])
        class Seen(Progress):
            def see(self, line):
                (folder / "new").write_text(line)
                (folder / "new").rename(folder / "seen")
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(3))
        settings = Settings(cache=folder, path="", python=str(folder / "python"))
        build.pip_wheel(folder, folder, {"PATH": "/usr/bin:/bin"}, settings, folder / "log", Seen(sys.stdout))
    """
    installer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
    child = wait_for((tmp_path / "seen").exists) and (tmp_path / "seen").read_text().split()[1]
    installer.terminate()
    assert installer.wait(timeout=30) == 3
    assert wait_for(lambda: not Path(f"/proc/{child}").exists() or "Z" in state(child))


def wait_for(condition, seconds=30.0):
    """The first true answer."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)
    return answer


def state(pid):
    """State letter of a process; Z is one that has ended and whom nobody has fetched yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"
