"""Compile: a compiler wrapper, an environment, `pip wheel`."""

from __future__ import annotations

import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

from hvd_trainer.launcher.horovod_build.facts import Facts
from hvd_trainer.launcher.horovod_build.progress import Progress
from hvd_trainer.launcher.horovod_build.settings import Settings


def last_words(standard: int) -> list[str]:
    """What every call of the compiler ends with; part of the wheel's key."""
    return [f"-std=c++{standard}", "-g0"]


def compiler_wrapper(folder: Path, facts: Facts, settings: Settings) -> Path:
    """Write a compiler that ends its arguments with the C++ standard torch needs.

    Horovod asks for C++14 and cmake puts that flag after CXXFLAGS, where it wins; only the very last word counts.
    The release is always compiled with debugging symbols, which nobody reads and which cost a fifth of the time.
    """
    wrapper = folder / "cxx"
    words = [facts.cxx, *shlex.split(settings.cxx)[1:]]
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@" {" ".join(last_words(facts.standard))}\n')
    wrapper.chmod(0o755)
    return wrapper


def environment(facts: Facts, settings: Settings, wrapper: Path, nccl: str = "") -> dict[str, str]:
    """The environment of the build: the caller's, without stray HOROVOD_* and with what was decided.

    Args:
        nccl: folder with include/ and lib/ of the NCCL to link, when the system's folders have none.
    """
    env = {name: value for name, value in settings.base_env.items() if not name.startswith("HOROVOD_")}
    folders = [str(Path(tool).parent) for tool in (facts.mpicxx, facts.cmake) if tool]
    env.update(
        PATH=os.pathsep.join([*folders, settings.path]),
        CXX=str(wrapper),
        MAKEFLAGS=f"-j{settings.jobs}",
        HOROVOD_CMAKE=facts.cmake,
        HOROVOD_WITH_PYTORCH="1",
        HOROVOD_WITHOUT_TENSORFLOW="1",
        HOROVOD_WITHOUT_MXNET="1",
    )
    env["HOROVOD_WITH_MPI" if settings.with_mpi else "HOROVOD_WITHOUT_MPI"] = "1"
    env["HOROVOD_WITH_GLOO" if settings.with_gloo else "HOROVOD_WITHOUT_GLOO"] = "1"
    if facts.cuda.gpu:
        env.update(
            HOROVOD_GPU_OPERATIONS="NCCL",
            HOROVOD_CUDA_HOME=facts.cuda.home,
            CUDA_HOME=facts.cuda.home,
            HOROVOD_NCCL_LINK="SHARED",
        )
        if nccl:
            env["HOROVOD_NCCL_HOME"] = nccl
    return env


def nccl_folder(folder: Path, facts: Facts) -> str:
    """Lay out the NCCL that came with torch as the linker wants it: its wheel has no plain `libnccl.so`."""
    if not (facts.cuda.gpu and facts.cuda.nccl):
        return ""
    libraries = sorted((Path(facts.cuda.nccl) / "lib").glob("libnccl.so*"))
    if not libraries:
        return ""
    home = folder / "nccl"
    (home / "lib").mkdir(parents=True)
    (home / "include").symlink_to(Path(facts.cuda.nccl) / "include")
    (home / "lib" / "libnccl.so").symlink_to(libraries[0])
    return str(home)


def pip_wheel(
    source: Path, into: Path, env: dict[str, str], settings: Settings, log: Path, progress: Progress
) -> Path | None:
    """Run the build.

    Returns:
        The wheel, or None when the build failed; the whole output is in `log`.
    """
    command = [
        settings.python,
        "-m",
        "pip",
        "wheel",
        "--verbose",
        "--no-deps",
        "--no-build-isolation",
        "--no-cache-dir",
        "--wheel-dir",
        str(into),
        str(source),
    ]
    with log.open("a", errors="replace") as stream:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            for line in _lines_or_ticks(process):
                if line is None:
                    progress.tick()
                else:
                    stream.write(line)
                    # pip indents what the build prints.
                    progress.see(line.strip())
            code = process.wait()
        finally:
            # Ctrl-C or a signal: pip, cmake and the compilers go with us, before their folder is removed.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
    progress.done()
    wheels = list(into.glob("horovod-*.whl"))
    return wheels[0] if code == 0 and wheels else None


def _lines_or_ticks(process: subprocess.Popen):
    """Lines of the process, and None every half second without one."""
    lines: queue.Queue = queue.Queue()

    def pump() -> None:
        for line in process.stdout or ():
            lines.put(line)
        lines.put(_END)

    threading.Thread(target=pump, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            yield None
            continue
        if line is _END:
            return
        yield line


_END = object()


def describe(env: dict[str, str], log: Path) -> None:
    """Begin the log with what the build was told."""
    ours = ("CXX", "MAKEFLAGS", "PATH", "CUDA_HOME")
    told = {name: env[name] for name in sorted(env) if name.startswith("HOROVOD_") or name in ours}
    with log.open("a") as stream:
        stream.write(f"python {sys.version.split()[0]}\n")
        stream.writelines(f"{name}={value}\n" for name, value in told.items())
