"""`python -m hvd_trainer.launcher.install_horovod`: build Horovod against the installed torch and install it.

Standard library only. Front doors: `launch/install_horovod.sh` and `hvd-trainer install-horovod`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hvd_trainer.errors import HvdTrainerError, MissingPartError
from hvd_trainer.launcher.horovod_build import HOROVOD_VERSION, build, cache, explain, finish, needs, record, source
from hvd_trainer.launcher.horovod_build import verify as verification
from hvd_trainer.launcher.horovod_build.facts import Facts, gather
from hvd_trainer.launcher.horovod_build.progress import Progress
from hvd_trainer.launcher.horovod_build.repairs import CPU_ONLY, CUDA_STANDARD, REPAIRS, Repair, apply
from hvd_trainer.launcher.horovod_build.settings import Settings


def parser() -> argparse.ArgumentParser:
    """The options, for the command and for the test that lists them."""
    out = argparse.ArgumentParser(
        prog="hvd-trainer install-horovod",
        description=f"Build Horovod {HOROVOD_VERSION} against the installed torch and install it.",
    )
    out.add_argument("--no-repairs", action="store_true", help="build the release as it is")
    out.add_argument("--rebuild", action="store_true", help="build anew even if a fitting wheel is installed or kept")
    out.add_argument("--cache", metavar="DIR", default="", help="folder for wheels, archives and logs")
    out.add_argument("--no-mpi", action="store_true", help="without the MPI engine")
    out.add_argument("--no-gloo", action="store_true", help="without the Gloo engine")
    out.add_argument("--mpicxx", metavar="PATH", default="", help="MPI compiler wrapper to build with")
    out.add_argument("--jobs", metavar="N", type=_positive, default=0, help="compilers at a time (default: the cores)")
    out.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
    return out


def main(arguments: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 0 when Horovod is installed and loads, 1 otherwise.
    """
    given = parser().parse_args(arguments)
    settings = Settings.from_environment(
        cache=given.cache,
        mpicxx=given.mpicxx,
        jobs=given.jobs,
        with_mpi=not given.no_mpi,
        with_gloo=not given.no_gloo,
        with_repairs=not given.no_repairs,
    )
    # A scheduler ends jobs with SIGTERM; as an exception it takes the compilers along.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        return install(settings, rebuild=given.rebuild, dry_run=given.dry_run)
    except HvdTrainerError as error:
        print(error, file=sys.stderr)
    except OSError as error:
        print(
            f"{error}\n  fix:     look at the room and rights of {settings.cache}, or use --cache DIR", file=sys.stderr
        )
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(map(str, error.cmd))} ended with {error.returncode}", file=sys.stderr)
        print("  fix:     its own message is above; a newer wheel or patchelf may help", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    return 1


def install(settings: Settings, *, rebuild: bool = False, dry_run: bool = False) -> int:
    """Bring the fitting Horovod into this Python: nothing, a kept wheel, or a build.

    Args:
        settings: see `Settings`.
        rebuild: build even if a fitting wheel is installed or kept.
        dry_run: say what would be done, and stop.

    Returns:
        0 when Horovod is installed and loads.

    Raises:
        HvdTrainerError: with what is missing and how to get it.
    """
    facts = gather(settings)
    chosen = REPAIRS if settings.with_repairs else ()
    if facts.torch_cuda and not facts.cuda.gpu:
        chosen += (CPU_ONLY,)
    if facts.cuda.gpu:
        chosen += (CUDA_STANDARD,)
    inputs = cache.inputs(facts, settings, chosen, movable=bool(finish.patchelf(settings)))
    wheel_key = cache.key(inputs)
    if not rebuild and not dry_run and record.installed().get("key") == wheel_key:
        print(f"Horovod {HOROVOD_VERSION} for torch {facts.torch} and {facts.mpi or 'no MPI'} is already installed.")
        return 0
    absent = needs.missing(facts, settings)
    _tell_plan(facts, settings, chosen, wheel_key)
    if dry_run:
        for need in absent:
            print(f"  missing: {need.what}\n    get it: {need.cure}")
        return 1 if absent else 0
    if absent:
        what = "".join(f"\n    - {need.what}\n      get it: {need.cure}" for need in absent)
        raise MissingPartError(f"Horovod cannot be built here yet:{what}", fix="then run this command again")
    with cache.lock(settings.cache), cache.scratch(settings.cache) as work:
        kept = None if rebuild else cache.find(settings.cache, wheel_key)
        if kept and _install_and_check(kept, settings, facts, from_cache=True):
            return 0
        wheel = _build(settings, facts, chosen, {"key": wheel_key, "inputs": inputs}, work)
        _install_and_check(cache.keep(settings.cache, wheel_key, wheel), settings, facts, from_cache=False)
    return 0


def _tell_plan(facts: Facts, settings: Settings, chosen: tuple[Repair, ...], wheel_key: str) -> None:
    wanted = {"MPI": settings.with_mpi, "Gloo": settings.with_gloo, "NCCL": facts.cuda.gpu}
    engines = [name for name in wanted if wanted[name]]
    for_what = ", ".join(
        [f"torch {facts.torch or '(none)'}", facts.mpi or "no MPI", facts.cxx_version or "no compiler"]
    )
    print(f"Horovod {HOROVOD_VERSION} with {', '.join(engines) or 'no engine'}")
    print(f"  for {for_what}, C++{facts.standard} (wheel {wheel_key})")
    if facts.torch:
        print(f"  {facts.cuda.reason}")
    for repair in chosen:
        print(f"  repair {repair.name}: {repair.why}")
    if not settings.with_repairs:
        print("  no repairs (--no-repairs): known faults stay in")


def _build(settings: Settings, facts: Facts, chosen: tuple[Repair, ...], note: dict[str, Any], work: Path) -> Path:
    log = settings.cache / "logs" / f"horovod-{note['key']}-{time.strftime('%Y%m%d-%H%M%S')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    tree = source.unpacked(settings, work)
    apply(tree, chosen)
    with log.open("w") as stream:
        stream.writelines(f"repair {r.name} in {r.file}: `{r.expected}` -> `{r.replacement}`\n" for r in chosen)
    wrapper = build.compiler_wrapper(work, facts, settings)
    env = build.environment(facts, settings, wrapper, build.nccl_folder(work, facts))
    build.describe(env, log)
    print(f"  building with {settings.jobs} compilers; log: {log}", flush=True)
    progress = Progress(sys.stdout)
    wheel = build.pip_wheel(tree, work / "built", env, settings, log, progress)
    if wheel is None:
        text, cure = explain.report(log)
        raise MissingPartError(text, fix=f"{cure}. Training also works without Horovod, through MPI (mpirun).")
    print(f"  built in {progress.elapsed_s:.0f} s")
    note = {
        **note,
        "repairs": [{"name": r.name, "file": r.file, "why": r.why} for r in chosen],
        "built": time.strftime("%Y-%m-%d"),
        "cuda": facts.cuda.reason,
    }
    return finish.finish(wheel, note, settings, work)


def _install_and_check(wheel: Path, settings: Settings, facts: Facts, *, from_cache: bool) -> bool:
    options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    command = [settings.python, "-m", "pip", "install", *options, str(wheel)]
    done = subprocess.run(command, env=settings.base_env, capture_output=True, text=True, errors="replace", check=False)
    answer, why = verification.verify(settings) if done.returncode == 0 else ({}, done.stderr.strip())
    wanted = {"mpi": settings.with_mpi, "gloo": settings.with_gloo, "nccl": facts.cuda.gpu}
    lacking = [name for name, wish in wanted.items() if answer and wish and not answer[name]]
    if answer and not lacking:
        engines = ", ".join(name for name in wanted if answer[name])
        print(f"Horovod {answer['version']} installed{' from the cache' if from_cache else ''}: {engines}")
        return True
    problem = why or f"built without {', '.join(lacking)}"
    if from_cache:
        print(f"  the kept wheel does not work here ({problem}); building anew")
        return False
    cache.drop(settings.cache, wheel.parent.name)
    raise MissingPartError(
        f"Horovod was built and does not work: {problem}",
        fix="the log names what cmake found; hvd-trainer doctor shows the rest",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
