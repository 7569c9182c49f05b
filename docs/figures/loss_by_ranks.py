"""Draws the README's picture from two real runs that it starts itself: the same training on 1 and on 2 ranks.

    python docs/figures/loss_by_ranks.py

The figure goes beside this file. Needs matplotlib, scikit-learn and mpirun; `--worker FILE` is what each rank runs.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
EPOCHS = 10
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#555555"  # Okabe and Ito: told apart without red and green


def train(file):
    """The digits example's model and recipe, with a row for every step."""
    import torch
    from sklearn.datasets import load_digits
    from torch.nn import functional as F
    from torch.utils.data import TensorDataset

    import hvd_trainer as ht

    def loss_fn(model, batch):
        x, y = batch
        return ht.Weighted(F.cross_entropy(model(x), y, reduction="sum"), len(y))

    def main(comm):
        digits = load_digits()
        x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(comm.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        plan = ht.BatchPlan(64, comm.size, reference_batch=32)
        callbacks = [ht.Warmup(2), ht.JsonLines(file, every_steps=1)]
        schedule = ht.schedules.cosine(EPOCHS)
        trainer = ht.Trainer(comm, model, optimizer, loss_fn, schedule=schedule, callbacks=callbacks)
        train_set = TensorDataset(x[:1437], y[:1437])
        trainer.fit(ht.Loader(train_set, plan, comm, seed=0), epochs=EPOCHS)

    ht.run(main)


def measure(num_ranks, folder):
    """(samples seen, loss) after each step of a run on that many ranks."""
    file = Path(folder) / f"ranks{num_ranks}.jsonl"
    launcher = ["mpirun", "-np", str(num_ranks)] if num_ranks > 1 else []
    root = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": root, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    subprocess.run([*launcher, sys.executable, __file__, "--worker", str(file)], check=True, env=variables, timeout=300)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "step"]
    samples = [sum(row["samples"] for row in rows[: number + 1]) for number in range(len(rows))]
    return samples, [row["loss"] for row in rows]


def draw(one, two, path):
    """Both curves above, their difference below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY})
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(7.2, 4.6), gridspec_kw={"height_ratios": [3, 1.15], "hspace": 0.16}, dpi=110
    )
    samples = one[0]
    above.plot(samples, one[1], color=ORANGE, linewidth=5, alpha=0.75, solid_capstyle="round", label="1 rank")
    above.plot(samples, two[1], color=BLUE, linewidth=1.3, label="2 ranks, the same global batches")
    above.set_yscale("log")
    above.set_ylabel("training loss")
    above.legend(frameon=False, loc="upper right")
    difference = [abs(a - b) for a, b in zip(one[1], two[1], strict=True)]
    below.plot(samples, [d or float("nan") for d in difference], ".", color=GREY, markersize=3)  # equal bits: no dot
    below.set_yscale("log")
    below.set_ylim(1e-10, 1e-4)
    below.set_yticks([1e-10, 1e-8, 1e-6, 1e-4])
    below.set_ylabel("their difference")
    below.set_xlabel("training samples seen")
    below.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (above, below):
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.minorticks_off()
    figure.align_ylabels()
    figure.savefig(path, bbox_inches="tight", metadata={"Software": None})
    return max(difference)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        train(sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as folder:
            one, two = measure(1, folder), measure(2, folder)
        figure = HERE / "loss_by_ranks.png"
        largest = draw(one, two, figure)
        print(f"{figure}: {len(one[0])} steps, largest difference of the loss {largest:.1e}")
