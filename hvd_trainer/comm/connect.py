"""`init`: choose an engine, connect the ranks, check that all came, and say in one line what was decided."""

from __future__ import annotations

import atexit
import math
import multiprocessing
import shutil
from typing import Any

import torch

from hvd_trainer import cores, env, log
from hvd_trainer.comm import choose, compiler_later, guard, launched, parts, rendezvous, threads
from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.derived import agree_on
from hvd_trainer.comm.horovod import HorovodCommunicator
from hvd_trainer.comm.mpi import MpiCommunicator
from hvd_trainer.comm.process_group import TorchCommunicator
from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.errors import ConfigError

LONGEST_TIMEOUT_S = 30 * 24 * 3600.0

_current: Communicator | None = None


def init(
    backend: str = "auto",
    engine: str = "auto",
    timeout_s: float = 600.0,
    *,
    checked: bool | None = None,
    init_method: str | None = None,
) -> Communicator:
    """Connect the processes that the launcher started and return their communicator.

    The environment variables HVD_TRAINER_BACKEND, _ENGINE, _TIMEOUT_S, _CHECKED and _INIT_METHOD win over the arguments:
    they come from the person who starts the job. From here on an uncaught error on one rank ends all ranks with one
    message.

    Args:
        backend: "auto", "nccl", "mpi" or "gloo".
        engine: "auto", "horovod", "mpi", "torch" or "single".
        timeout_s: seconds, > 0, after which a collective that not all ranks came to ends the job.
        checked: compare every collective over the ranks; slow, for tests and debugging.
        init_method: where the ranks of engine "torch" meet: "env://", "tcp://host:port" or "file:///path"; by default
            worked out from the launcher. With it "auto" means "torch".

    Raises:
        ConfigError: an unknown name, a combination that cannot work, or a second call in one process.
        MissingPartError: the part that was asked for is not installed.
        StartError: N processes were started, but the library sees another number.

    Example:
        >>> comm = init(engine="single")        # doctest: +ELLIPSIS
        hvd_trainer: 1 rank on 1 node, engine single, backend none (one process, as asked), ... a rank
        >>> comm.size
        1
        >>> comm.close()
    """
    global _current
    refuse_second_start()
    compiler_later.defer()
    env.malloc_keeps()  # a misspelt word is refused now, not after the first step
    variables = env.snapshot()
    started = launched.read(variables)
    guard.install(None)
    backend, backend_from = env.own_setting("BACKEND", backend)
    engine, engine_from = env.own_setting("ENGINE", engine)
    limit = check_timeout(*env.own_setting("TIMEOUT_S", timeout_s))
    meet, meet_from = env.own_setting("INIT_METHOD", init_method)
    if meet:
        engine = engine_that_meets(rendezvous.check(meet), engine, started.size)
    choice = choose.choose(backend, engine, started, parts.InstalledParts())
    comm = make(choice, limit, env.checked(checked), started, meet)
    _current = comm
    if comm.size != started.size:
        raise guard.LonelyRank(*lonely(comm, started))
    guard.install(comm)
    comm.on_close.append(guard.uninstall)
    atexit.register(guard.at_exit, comm)  # after the engine's own handlers, so it runs before them
    comm.on_close.append(lambda: atexit.unregister(guard.at_exit))
    words = settle(comm, variables)
    names = ", ".join(name for name in (engine_from, backend_from, meet_from) if name)
    reason = f"{choice.reason}; {names} is set" if names else choice.reason
    nodes = f"{comm.num_nodes} node{'s' if comm.num_nodes != 1 else ''}"
    ranks = f"{comm.size} rank{'s' if comm.size != 1 else ''} on {nodes}"
    log.say(f"hvd_trainer: {ranks}, engine {comm.engine}, backend {comm.backend} ({reason}), {words}", rank=comm.rank)
    if choice.advice:
        log.warn(f"hvd_trainer: {choice.advice}", rank=comm.rank)
    return comm


def refuse_second_start() -> None:
    """One communicator at a time; and MPI and Horovod start once in a process, whatever is closed.

    A worker process (`Loader(num_workers=)`) imports the script first, and must not become a rank on the way.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "ht.init() in a worker process: workers import the script, and it trains at its top level",
            'training below `if __name__ == "__main__":`',
            "put what trains into a function and call it there: `if __name__ == \"__main__\": ht.run(main)`",
        )
    if _current is None:
        return
    if not _current.closed:
        raise ConfigError(
            f"ht.init() was called before in this process (engine {_current.engine}, {guard.who(_current)})",
            "one communicator at a time",
            "pass that communicator on as an argument, or close() it first",
        )
    if _current.engine != "single":
        raise ConfigError(
            f"ht.init() after close(): {_current.engine} cannot start twice in one process",
            "one ht.init() in a process",
            "close the communicator at the very end, or do the second job in a process of its own",
        )


def check_timeout(value: Any, variable: str) -> float:
    """The limit as a float, or a ConfigError."""
    name = variable or "timeout_s"
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds <= LONGEST_TIMEOUT_S:
        raise ConfigError(f"{name}={value!r}", "a number of seconds > 0, at most 30 days", "leave it out for 600 s")
    return seconds


def engine_that_meets(init_method: str, engine: str, size: int) -> str:
    """The engine where an init method is given: only one has a use for it. One process alone meets nobody."""
    if engine == "auto" and size > 1:
        return "torch"
    if engine in ("mpi", "horovod"):
        raise ConfigError(
            f"init_method={init_method!r} with engine {engine!r}, which finds the ranks through its launcher",
            "engine 'torch' or 'auto'",
            "leave init_method out",
        )
    return engine


def make(
    choice: choose.Choice,
    timeout_s: float,
    checked: bool,
    started: launched.Launched,
    init_method: str | None,
) -> Communicator:
    """The engine's communicator, connected."""
    if choice.engine == "torch":
        where = rendezvous.method(started, env.snapshot(), init_method)
        return TorchCommunicator(choice.backend, started, where, timeout_s, checked)
    if choice.engine == "mpi":
        return MpiCommunicator(timeout_s, checked)
    if choice.engine == "horovod":
        return HorovodCommunicator(choice.backend, timeout_s, checked)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    return SingleCommunicator(device, timeout_s, checked)


def settle(comm: Communicator, variables: dict[str, str]) -> str:
    """What all ranks must share: compare the settings, divide the cores; returns the words on threads."""
    mine = (comm.engine, comm.backend, comm.timeout_s, comm.checked)
    gpu = str(torch.cuda.get_device_properties(comm.device).uuid) if comm.device.type == "cuda" else ""
    every = comm._gather_objects(
        (mine, comm.node, cores.my_cores(), gpu), "settings"
    )  # before checked mode is known to agree
    agree_on([settings for settings, *_ in every], "engine, backend, timeout_s, checked")
    gpus = [(node, gpu) for _, node, _, gpu in every if gpu]
    if len(set(gpus)) < len(gpus):
        raise ConfigError(
            "two ranks use the same GPU",
            "one GPU a rank",
            "start as many ranks as GPUs; see CUDA_VISIBLE_DEVICES of each rank",
        )
    here = [allowed for _, node, allowed, _ in every if node == comm.node]
    return threads.apply(threads.threads_for(comm.local_rank, here, cores.cgroup_quota()), variables)


def lonely(comm: Communicator, started: launched.Launched) -> tuple[str, str, str]:
    """The words of the error for N processes that do not see each other."""
    seen = ", ".join(f"{k}={v}" for k, v in started.seen.items()) or "none"
    given = (
        f"{started.size} processes were started {started.started_by}, but {comm.engine} sees {comm.size}: "
        f"without this check each would train alone\n"
        f"  environment: {seen}\n"
        f"  mpirun on the PATH: {shutil.which('mpirun') or 'none'}\n"
        f"  libraries loaded: {', '.join(loaded_libraries()) or 'none'}"
    )
    fix = (
        "launcher and library must be of one MPI: under SLURM start with srun --mpi=pmix (Open MPI) or "
        "srun --mpi=pmi2 (MPICH), "
        "see srun --mpi=list; else use the mpirun that belongs to the library above"
    )
    return given, f"{started.size} connected ranks", fix


def loaded_libraries(maps: str = "/proc/self/maps") -> list[str]:
    """Paths of the MPI and process-management libraries in this process."""
    try:
        with open(maps) as file:
            paths = {line.split(maxsplit=5)[5].strip() for line in file if line.count("/") > 1}
    except OSError:
        return []
    return sorted(
        p
        for p in paths
        if p.rsplit("/", 1)[-1].startswith(("libmpi.", "libmpi-", "libmpich.", "libpmix.", "libpmi.", "libpmi2."))
    )
