"""The proof on Fashion-MNIST: `python benchmarks/large_batch/run.py` measures all parts on two ranks and writes a dated record.

    python benchmarks/large_batch/run.py                       # the MLP, all parts
    python benchmarks/large_batch/run.py noise rates           # some of them, on top of what the record has
    python benchmarks/large_batch/run.py --model cnn           # the second record
    python benchmarks/large_batch/run.py --quick --out FOLDER  # few cells, for trying

Each part writes its JSON when it ends, and the page with what there is. A part that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.large_batch import judge, judge_tune, page, plan, plots  # noqa: E402
from benchmarks.large_batch.cells import Cell  # noqa: E402
from hvd_trainer.bench import record  # noqa: E402
from hvd_trainer.cli.bench_place import short_paths  # noqa: E402

RANKS = 2
QUIET_LOAD = 0.5
DATA = "/usr/share/datasets/fashion-mnist"
CNN_VALID, MLP_VALID, QUICK_VALID = 2_000, 10_000, 2_000
CNN_TARGET = 0.5
TIMES_BUDGET_S = 10.0
TUNE_BUDGET = "150s"  # about 20 starts of 4 s; a grid in one process has one
# Seconds on two quiet cores, for the time left; estimated from processor times, the record has the measured ones.
EXPECTED_S = {
    "mlp": {"grid": 220, "noise": 25, "division": 15, "rates": 150, "times": 45, "tune": 190, "optimizers": 180},
    "cnn": {"grid": 420, "noise": 60},
}
CNN_PARTS = ("grid", "noise")


@dataclass
class Run:
    """One start of this command.

    Args:
        asked: the command line.
        folder: of the record.
    """

    asked: argparse.Namespace
    folder: Path

    @property
    def target(self) -> float:
        return CNN_TARGET if self.asked.model == "cnn" else plan.TARGET

    @property
    def main(self) -> plan.Family:
        """The optimizer and model of the first table."""
        family = plan.CNN if self.asked.model == "cnn" else plan.SGD
        return plan.quick(family) if self.asked.quick else family

    @property
    def num_valid(self) -> int:
        return QUICK_VALID if self.asked.quick else CNN_VALID if self.asked.model == "cnn" else MLP_VALID

    def job(self, name: str, job: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Start the worker on two ranks; the cells that it was asked for, and the times."""
        work = self.folder / f"{name}.work"
        shutil.rmtree(work / "claims", ignore_errors=True)  # of a start that was interrupted
        (work / "claims").mkdir(parents=True)
        place = {"folder": str(work.resolve()), "data": self.asked.data, "target": self.target, "num_valid": self.num_valid}
        (work / "job.json").write_text(json.dumps({**job, **place}))
        command = [sys.executable, "-m", "hvd_trainer", "launch", "-np", str(RANKS), "--with", "mpirun", "--threads", "1", str(HERE / "worker.py")]
        code = started([*command, str(work / "job.json")], stdout=subprocess.DEVNULL)
        if code:
            sys.exit(f"{name}: the job ended with exit code {code}; the same command goes on from there")
        cells = [json.loads(line)["result"] for path in sorted(work.glob("cells-*.jsonl")) for line in path.read_text().splitlines() if line.endswith("}")]
        times = json.loads((work / "times.json").read_text()) if job["times"] else {}
        return cells, times

    def have(self, part: str) -> dict[str, Any]:
        """The JSON of a part that was measured before."""
        path = self.folder / f"{part}.json"
        if not path.exists():
            sys.exit(f"{path.name} is not in {self.folder}: run the part {part} first")
        return json.loads(path.read_text())

    def bests(self) -> dict[int, dict[str, Any]]:
        """{batch: the grid's best}."""
        return judge.bests(self.have("grid")["cells"])


def started(command: Sequence[str], **how: Any) -> int:
    """Run a command of the program to its end; whatever ends us ends it in the way that lets it end its ranks."""
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **how)
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def grid(run: Run) -> dict[str, Any]:
    """Ground truth: every batch over its rates, one rank each."""
    return {"cells": run.job("grid", plan.grid_job([run.main]))[0]}


def noise(run: Run) -> dict[str, Any]:
    """Runs at a few batches with the noise scale measured, on two ranks."""
    batches = plan.NOISE_BATCHES[run.asked.model]
    return {"cells": run.job("noise", plan.job(cells=plan.noise_cells(run.main, batches, run.bests(), run.main.seeds)))[0]}


def division(run: Run) -> dict[str, Any]:
    """One global batch, divided in three ways."""
    return {"cells": run.job("division", plan.job(cells=plan.division_cells()))[0]}


def rates(run: Run) -> dict[str, Any]:
    """What the rules make of a tuned rate, trained."""
    bests = run.bests()
    noise_scale = judge.main_noise_run(run.have("noise")["cells"])["noise_scale"]["mean"]
    if noise_scale is None:
        sys.exit("the noise scale of the main run is undetermined: no noise rule")
    wanted = {}
    for base in (plan.MAIN_BATCH, plan.SMALL_BASE):
        if base in bests:
            wanted[base] = plan.rule_rates(noise_scale, base, bests[base]["lr"], run.main.batches)
    cells = {cell.key: cell for rules in wanted.values() for cell in plan.rule_cells(rules, run.main.seeds)}
    # What the grid has trained already is not trained again.
    known = {judge.key_of(cell): cell for cell in run.have("grid")["cells"]}
    missing = [cell for key, cell in cells.items() if key not in known]
    found = run.job("rates", plan.job(cells=missing))[0]
    return {"noise_scale": noise_scale, "rates": wanted, "cells": [*found, *(known[key] for key in cells if key in known)]}


def times(run: Run) -> dict[str, Any]:
    """Seconds of steps on one rank and on two."""
    wanted = {"batches": list(run.main.batches if run.asked.quick else plan.BATCHES), "budget_s": TIMES_BUDGET_S, "lr": 0.05}
    return run.job("times", plan.job(times=wanted))[1]


def tune(run: Run) -> dict[str, Any]:
    """`hvd-trainer tune` as people start it; then its recommendation with all seeds, and its step times."""
    out = run.folder / "tune.work" / "search"
    out.mkdir(parents=True, exist_ok=True)
    begin_s = time.perf_counter()
    command = ["tune", "--target", f"val_loss<={run.target}", "--budget", run.asked.tune_budget, "--ranks", "1,2", "--threads", "1", "--with", "mpirun"]
    words = [*command, "--out", str(out), "examples/fashion_mlp.py", "--", "--data", run.asked.data]
    code = started([sys.executable, "-m", "hvd_trainer", *words])
    wall_s = time.perf_counter() - begin_s
    report = json.loads((out / "report.json").read_text())
    shown = " ".join(["hvd-trainer", *command, "--out", "FOLDER", "examples/fashion_mlp.py"])
    found: dict[str, Any] = {"tune_command": shown, "exit_code": code, "wall_s": wall_s, "report": report}
    chosen = judge_tune.recommended(report)
    cells = [
        Cell(**{**asdict(run.main.cell(one["batch"], one["lr"], seed)), "optimizer": one["optimizer"], "warmup_samples": one["warmup_samples"],
                "warmup_from": min(1.0, one["warmup_from"])})
        for one in chosen.values() for seed in run.main.seeds
    ]  # fmt: skip
    batches = sorted({one["batch"] for one in chosen.values()})
    if cells:
        found["cells"], found["times"] = run.job("tune", plan.job(cells=cells, times={"batches": batches, "budget_s": TIMES_BUDGET_S / 3, "lr": 0.05}))
    return found


def optimizers(run: Run) -> dict[str, Any]:
    """Other optimizers: a small grid, and one noise run each."""
    families = [plan.quick(family) for family in plan.OTHERS] if run.asked.quick else plan.OTHERS
    cells = run.job("optimizers", plan.grid_job(families))[0]
    noisy = []
    for family in families:
        mine = [cell for cell in cells if plan.name_of(cell) == plan.name_of(asdict(family))]
        noisy += plan.noise_cells(family, [plan.MAIN_BATCH], judge.bests(mine), family.seeds)
    return {"cells": cells, "noise_cells": run.job("optimizers-noise", plan.job(cells=noisy))[0]}


PARTS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "grid": grid, "noise": noise, "division": division, "rates": rates, "times": times, "tune": tune, "optimizers": optimizers,
}  # fmt: skip


def main() -> int:
    """Run the parts that were asked for; returns the exit code."""
    parser = arguments()
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}: they are {', '.join(PARTS)}")
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"the load is {load:.2f}: something else is running, and the times will show it (steps will not)")
    name = ("large-batch-cnn" if asked.model == "cnn" else "large-batch") + ("-quick" if asked.quick else "")
    folder = asked.out or HERE.parent / "records" / f"{name}-{datetime.date.today().isoformat()}"
    run = Run(asked, folder)
    parts = asked.parts or list(CNN_PARTS if asked.model == "cnn" else PARTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    begin_s = time.perf_counter()
    for number, part in enumerate(parts):
        left_s = sum(EXPECTED_S[asked.model].get(later, 0) for later in parts[number:])
        say(f"== {part} ({number + 1} of {len(parts)}); {time.perf_counter() - begin_s:.0f} s gone, about {left_s} s left")
        part_begin_s = time.perf_counter()
        command = " ".join(["python benchmarks/large_batch/run.py", *sys.argv[1:]])
        settings = {"target": run.target, "ranks": RANKS, "model": asked.model, "quick": asked.quick, "num_valid": run.num_valid}
        head = record.head(f"large-batch {part}", command, settings, {})
        content = {**head, "seconds": None, **PARTS[part](run)}
        content["seconds"] = round(time.perf_counter() - part_begin_s, 1)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{part}.json").write_text(short_paths(as_text(content)) + "\n")
        for work in folder.glob(f"{part}*.work"):
            shutil.rmtree(work)
        write_page(folder)
    say(f"{time.perf_counter() - begin_s:.0f} s in all: {folder / 'README.md'}")
    return 0


def write_page(folder: Path) -> None:
    """README.md and the pictures, from the JSON files that there are."""
    found = {part: json.loads((folder / f"{part}.json").read_text()) for part in PARTS if (folder / f"{part}.json").exists()}
    drawn = plots.draw(folder, found)
    (folder / "README.md").write_text(page.text(found, drawn))


def as_text(content: Mapping[str, Any]) -> str:
    """JSON with one line for each key, and one for each training."""
    lines = []
    for key, value in content.items():
        if isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            rows = ",\n".join(f"  {json.dumps(one)}" for one in value)
            lines.append(f" {json.dumps(key)}: [\n{rows}\n ]")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}"


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all, of the cnn {' and '.join(CNN_PARTS)}")
    parser.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    parser.add_argument("--quick", action="store_true", help="few cells, one seed, part of the validation set: for trying")
    parser.add_argument("--data", default=DATA, help="folder of the IDX files")
    parser.add_argument("--tune-budget", default=TUNE_BUDGET, help="of hvd-trainer tune")
    parser.add_argument("--out", type=Path, help="default: a dated folder in benchmarks/records")
    return parser


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
