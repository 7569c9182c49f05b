"""Program for several ranks: everything that tests/golden compares, in one start.

    python -m tests.multi.golden straight FOLDER       every case and every kind of model; some are left at step STOP, with a checkpoint
    python -m tests.multi.golden resumed FOLDER RUNS   goes on with those in RUNS, the checkpoints of an earlier start

Rank 0 writes FOLDER/<part>.pt, {name: result}. What goes wrong in one is noted there as text and the others go on; each is written as
soon as it is there, so that a hang in a later one does not hide it.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import hvd_trainer as ht
from tests.multi import model_table
from tests.multi.cases import CASES, STEPS, train
from tests.multi.models import KINDS

RESUMED = [case for case in CASES if case.name in ("sgd micro", "adamw", "adamw float32 micro", "clipped")]
STOP, END = 20, STEPS  # an epoch has 7 steps: both are in the middle of one


def write_each(comm, file: Path, items: Sequence, function: Callable[[Any], Any]) -> None:
    """Call `function` with each item; the result, or the traceback, is in `file` under the item's name."""
    found = {}
    for item in items:
        try:
            found[item.name] = function(item)
        except Exception:
            found[item.name] = traceback.format_exc()
        if comm.rank == 0:
            torch.save(found, file)


def main(comm):
    what, folder = sys.argv[1], Path(sys.argv[2])
    runs = Path(sys.argv[3]) if what == "resumed" else folder / "runs"

    def checkpointed(case, steps):
        return train(comm, case, steps, [ht.Checkpoint(runs / case.name.replace(" ", "-"))], resume="auto")

    if what == "resumed":
        write_each(comm, folder / "resumed.pt", RESUMED, lambda case: checkpointed(case, END))
        return
    write_each(comm, folder / "answer.pt", CASES, lambda case: train(comm, case))
    write_each(comm, folder / "stopped.pt", RESUMED, lambda case: checkpointed(case, STOP))
    write_each(comm, folder / "models.pt", KINDS, lambda kind: model_table.measure(kind, comm))


if __name__ == "__main__":
    ht.run(main)
