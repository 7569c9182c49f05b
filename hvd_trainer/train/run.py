"""`run(main)`: start, call, close; and end the whole job where one rank fails."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Optional

from hvd_trainer import env
from hvd_trainer.checkpoint import rng
from hvd_trainer.comm import guard, launched
from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.connect import init
from hvd_trainer.errors import ConfigError, NonFiniteError
from hvd_trainer.log import say
from hvd_trainer.train import trial
from hvd_trainer.train.config import describe, override


def run(
    main: Callable,
    config: Any = None,
    *,
    backend: str = "auto",
    engine: str = "auto",
    timeout_s: float = 600.0,
    argv: Optional[Sequence[str]] = None,
) -> Any:
    """Connect the ranks, call `main(comm, config)` on each (or `main(comm)` without a config), and leave in good order.

    An error that `main` does not catch ends the processes of all ranks, with one message that names rank and step.

    Args:
        main: the user's function.
        config: dataclass or mapping whose fields may be overridden by `--set name=value` and `--config file.yaml`. An option
            named as a field, `--lr 0.2`, that set nothing is an error; `--help` shows the fields and ends the script; other
            options are the script's own.
        backend: "auto", "nccl", "mpi", "gloo"; see `init`.
        engine: "auto", "horovod", "mpi", "torch", "single"; see `init`.
        timeout_s: seconds after which a collective that nobody answers ends the job.
        argv: arguments to look for overrides in; default: all of the script's. With a parser of the script's own, what that
            left over: `args, rest = parser.parse_known_args()`.

    Returns:
        What `main` returned on this rank.

    Example:
        >>> import hvd_trainer as ht
        >>> ht.run(lambda comm, config: (comm.size, config["lr"]), {"lr": 0.1}, engine="single", argv=["--set", "lr=0.2"])
        (1, 0.2)
    """
    arguments = sys.argv[1:] if argv is None else argv
    if config is not None and ("--help" in arguments or "-h" in arguments):  # a parser of the script's own would not have come here
        say(describe(config, Path(sys.argv[0]).name), rank=launched.read(env.snapshot()).rank)
        sys.exit(0)
    comm = job = None
    try:
        job = trial.begin()
        if config is not None:
            config = override(config, arguments)
        elif any(argument.partition("=")[0] == "--set" for argument in arguments):  # --config alone may be the script's own
            raise ConfigError(
                "--set, but ht.run(main) has no config to set something in",
                "ht.run(main, config)",
                "give ht.run a dataclass object or a dict as config, or leave --set out",
            )
        if job is not None:
            job.runs[0].apply(config)  # a script that cannot be tuned is refused before it starts
            backend, engine = (job.backend, "auto") if job.backend else (backend, engine)
        _check_main(main, 1 if config is None else 2)
        comm = init(backend=backend, engine=engine, timeout_s=timeout_s)
        if job is not None:
            result = _run_trials(main, config, comm, job)
        else:
            result = main(comm) if config is None else main(comm, config)
    except BaseException as error:
        if job is not None and (order := trial.current()) is not None:
            order.failed(error)
        guard.fail_job(error, comm)
        raise
    finally:
        trial.end()
    comm.close()
    return result


def _run_trials(main: Callable, config: Any, comm: Communicator, job: trial.TrialJob) -> None:
    """The runs of a job of `tune`, each as if it were the first: a fresh call of `main`, the same random states."""
    states = rng.get_rng_state(comm.device)
    for order in job.runs:
        trial.enter(order)
        rng.set_rng_state(states, comm.device)
        own = order.apply(config)
        if comm.rank == 0:
            order.write("config", fields=trial.roles(own), config=trial.plain_fields(own))
        try:
            main(comm, own)
        except trial.TrialEnded:
            pass
        except NonFiniteError as error:  # found in a reduced value: all ranks are here
            if order is job.runs[-1]:
                raise
            if comm.rank == 0:
                order.failed(error)
        gc.collect()  # models and their buffers are full of cycles


def _check_main(main: Callable, num_arguments: int) -> None:
    try:
        inspect.signature(main).bind(*range(num_arguments))
    except TypeError as error:
        takes = "main(comm)" if num_arguments == 1 else "main(comm, config)"
        name = getattr(main, "__name__", repr(main))
        raise ConfigError(f"ht.run calls {takes}, but {name}: {error}", takes, f"def {takes.replace('main', name, 1)}: ...") from error
