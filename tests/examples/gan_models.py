"""Run by mpirun: examples/gan.py in float64; rank 0 leaves both models, and each rank what it sent, in a folder."""

import json
import sys
from pathlib import Path

import torch

import hvd_trainer as ht
from hvd_trainer.optim import choose_way

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
import gan  # noqa: E402


def main(comm, config):
    sent, allreduce = [], comm._allreduce_

    def record(tensor, name, op, scale):
        sent.append(name)
        return allreduce(tensor, name, op, scale)

    comm._allreduce_ = record
    generator, discriminator = gan.main(comm, {**config, "json": ""})
    Path(config["folder"], f"sent-{comm.size}-{comm.rank}.json").write_text(json.dumps(sent))
    if comm.rank == 0:
        torch.save([*generator.parameters(), *discriminator.parameters()], Path(config["folder"], f"{comm.size}.pt"))


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    choose_way.AUTO_ENGINES = set()  # in memory of the node nothing would be sent
    # 33: 17 and 16 samples on two ranks.
    ht.run(main, {"global_batch": 33, "lr": 1e-3, "steps": 30, "folder": sys.argv[1]})
