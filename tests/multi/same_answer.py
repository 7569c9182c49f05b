"""Program for several ranks: trains every case; rank 0 saves parameters and losses to the file in the first argument."""

import sys

import torch

import hvd_trainer as ht
from tests.multi.cases import CASES, train


def main(comm):
    results = {case.name: train(comm, case) for case in CASES}
    if comm.rank == 0:
        torch.save({name: (params, [row["loss"] for row in history]) for name, (params, history) in results.items()}, sys.argv[1])


if __name__ == "__main__":
    ht.run(main)
