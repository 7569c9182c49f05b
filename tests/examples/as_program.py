"""An example run as a program inside another one, which has imported torch already: as python does it, but for the process.

On several ranks: python -m tests.examples.as_program FOLDER RUNS

starts each of RUNS (JSON: label -> [example, arguments, dtype, whether gradients travel as messages, though it is one node]) on one
communicator, in place of a start for each. Into FOLDER:
<label>.txt, what rank 0 printed, with the traceback of an error; <label>-sent-<rank>.json, the names of the allreduces; <label>.pt, the
parameters of the models that `main` returned.
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import torch

import hvd_trainer as ht
from hvd_trainer.comm import connect
from hvd_trainer.optim import choose_way
from hvd_trainer.train.config import override

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_path(path: Path, arguments: Sequence[object] = (), dtype: torch.dtype = torch.float32) -> None:
    """Run a script as `python path arguments...` would; what it changes in the process is put back."""
    before = sys.argv, sys.path, torch.get_num_threads(), torch.get_default_dtype()
    sys.argv, sys.path = [str(path), *map(str, arguments)], [str(path.parent), *sys.path]
    torch.set_default_dtype(dtype)
    try:
        # One thread, as for the other starts; `ht.init` would take all cores for one rank, and a small layer waits for them.
        with torch.random.fork_rng(), warnings.catch_warnings(), mock.patch.dict("os.environ", OMP_NUM_THREADS="1"):
            torch.set_num_threads(1)
            warnings.simplefilter("default")
            runpy.run_path(str(path), run_name="__main__")
    finally:
        if connect._current is not None and connect._current.engine == "single":
            connect._current.close()
        sys.argv, sys.path = before[:2]
        torch.set_num_threads(before[2])
        torch.set_default_dtype(before[3])
        for module in [m for m in sys.modules if m.split(".")[0] == "parts"]:
            del sys.modules[module]


@contextlib.contextmanager
def started(comm) -> Iterator[dict]:
    """`ht.run` calls with this communicator; the dict gets what `main` returned and the names of the allreduces."""
    noted, allreduce, run = {"sent": [], "returned": None}, comm.allreduce_, ht.run

    def record(tensor, name, *how, **named):
        noted["sent"].append(name)
        return allreduce(tensor, name, *how, **named)

    def run_here(main, config):
        noted["returned"] = main(comm, override(config, sys.argv[1:]))

    comm.allreduce_, ht.run = record, run_here
    try:
        yield noted
    finally:
        comm.allreduce_, ht.run = allreduce, run


def main(comm) -> None:
    folder, runs = Path(sys.argv[1]), json.loads(sys.argv[2])
    engines = choose_way.AUTO_ENGINES
    for label, (name, arguments, dtype, as_messages) in runs.items():
        printed = io.StringIO()
        choose_way.AUTO_ENGINES = set() if as_messages else engines  # in memory of the node nothing would be sent
        with started(comm) as noted, contextlib.redirect_stdout(printed):
            try:
                run_path(EXAMPLES / name, arguments, getattr(torch, dtype))
            except Exception:
                printed.write(traceback.format_exc())
        (folder / f"{label}-sent-{comm.rank}.json").write_text(json.dumps(noted["sent"]))
        if comm.rank == 0:
            (folder / f"{label}.txt").write_text(printed.getvalue())
            models = noted["returned"] if isinstance(noted["returned"], tuple) else ()
            torch.save([p.detach() for model in models for p in model.parameters()], folder / f"{label}.pt")


if __name__ == "__main__":
    ht.run(main)
