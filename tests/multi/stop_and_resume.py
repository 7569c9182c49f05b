"""Program for several ranks: trains each case up to step argv[2], resuming from argv[1]/<case> where that exists."""

import sys
from pathlib import Path

import torch

import hvd_trainer as ht
from tests.multi.cases import CASES, train

RESUMED = [case for case in CASES if case.name in ("sgd micro", "adamw", "adamw float32 micro", "clipped")]


def main(comm):
    folder, steps, out = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    results = {
        case.name: train(comm, case, steps, [ht.Checkpoint(folder / case.name.replace(" ", "-"))], resume="auto") for case in RESUMED
    }
    if comm.rank == 0:
        torch.save(results, out)


if __name__ == "__main__":
    ht.run(main)
