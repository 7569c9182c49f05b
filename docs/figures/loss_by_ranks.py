"""Draws the README's picture from two real runs of the README's script that it starts itself, on 1 and on 2 ranks.

    python docs/figures/loss_by_ranks.py

In float32, as it stands there, and in float64: what differs is rounding. The figure goes beside this file. Needs matplotlib,
scikit-learn and mpirun; `--worker FILE [float64]` is what each rank runs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#555555"  # Okabe and Ito: told apart without red and green


def train(file, dtype="float32"):
    """The README's script with a row for every step in place of the lines that it prints."""
    import torch

    torch.set_default_dtype(getattr(torch, dtype))
    script = re.search(r"^```python\n(.*?)^```", (HERE.parents[1] / "README.md").read_text(), re.DOTALL | re.MULTILINE)[1]
    printing, given = "ht.Progress()", "torch.float32"
    assert script.count(printing) == script.count(given) == 1
    sys.argv[1:] = ["--set", f"folder={file}.checkpoints"]
    script = script.replace(printing, f"ht.JsonLines({file!r}, every_steps=1)").replace(given, f"torch.{dtype}")
    exec(compile(script, "README.md", "exec"), {"__name__": "__main__"})


def measure(num_ranks, dtype, folder):
    """(samples seen, loss) after each step of a run on that many ranks."""
    file = Path(folder) / f"{dtype}_{num_ranks}.jsonl"
    launcher = ["mpirun", "-np", str(num_ranks)] if num_ranks > 1 else []
    root = os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": root, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    subprocess.run([*launcher, sys.executable, __file__, "--worker", str(file), dtype], check=True, env=variables, timeout=300)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "step"]
    samples = [sum(row["samples"] for row in rows[: number + 1]) for number in range(len(rows))]
    return samples, [row["loss"] for row in rows]


def draw(runs, path):
    """Both float32 curves above, the differences of both precisions below; returns the largest of each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY})
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(7.2, 4.6), gridspec_kw={"height_ratios": [3, 1.15], "hspace": 0.16}, dpi=110
    )
    one, two = runs["float32"]
    samples = one[0]
    above.plot(samples, one[1], color=ORANGE, linewidth=5, alpha=0.75, solid_capstyle="round", label="1 rank")
    above.plot(samples, two[1], color=BLUE, linewidth=1.3, label="2 ranks, the same global batches")
    above.set_yscale("log")
    above.set_ylabel("training loss")
    above.legend(frameon=False, loc="upper right")
    differences = {dtype: [abs(a - b) for a, b in zip(one[1], two[1], strict=True)] for dtype, (one, two) in runs.items()}
    for (dtype, difference), colour in zip(differences.items(), (GREY, GREEN)):
        below.plot(samples, [d or float("nan") for d in difference], ".", color=colour, markersize=3, label=dtype)  # equal bits: no dot
    below.set_yscale("log")
    below.set_ylim(1e-19, 1e-1)
    below.set_yticks([1e-16, 1e-12, 1e-8, 1e-4])
    below.set_ylabel("their difference")
    below.legend(frameon=False, loc="center", bbox_to_anchor=(0.5, 0.44), ncols=2, markerscale=3)
    below.set_xlabel("training samples seen")
    below.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for axes in (above, below):
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.minorticks_off()
    figure.align_ylabels()
    figure.savefig(path, bbox_inches="tight", metadata={"Software": None})
    return {dtype: max(difference) for dtype, difference in differences.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        train(*sys.argv[2:4])
    else:
        with tempfile.TemporaryDirectory() as folder:
            runs = {dtype: (measure(1, dtype, folder), measure(2, dtype, folder)) for dtype in ("float32", "float64")}
        figure = HERE / "loss_by_ranks.png"
        largest = draw(runs, figure)
        print(f"{figure}: {len(runs['float32'][0][0])} steps, largest difference of the loss {largest}")
