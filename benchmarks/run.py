"""Measures everything, the peers too, and writes a dated record: `python benchmarks/run.py`.

The peers (requirements.txt beside this file) are installed once into an environment of their own, which sees the packages of
the one that runs this: every column uses the same torch. Give the machine nothing else to do meanwhile.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from benchmarks import report  # noqa: E402
from hvd_trainer.bench import columns, plot, record, rounds, scaling, stats, summary, transfers, workloads  # noqa: E402
from hvd_trainer.bench.columns import Column  # noqa: E402
from hvd_trainer.bench.start import Ended  # noqa: E402
from hvd_trainer.cli.bench_place import Place, short_paths  # noqa: E402
from hvd_trainer.errors import HvdTrainerError  # noqa: E402

PARTS = ("step", "sweep", "allreduce", "scale")
PEER_LINE = "torchrun-peers"
PEERS = tuple(
    Column(name, f"benchmarks.peers.{name}_way:make", PEER_LINE, about)
    for name, about in (
        ("lightning", "Lightning's Trainer, DDP strategy, Gloo"),
        ("accelerate", "Hugging Face Accelerate, Gloo"),
        ("ignite", "PyTorch-Ignite's Engine with auto_model, Gloo"),
    )
)
AGAINST = "ours-mpi"
QUIET_LOAD = 0.5


def main() -> int:
    """Run the parts that were asked for; returns the exit code."""
    asked = arguments().parse_args()
    load = os.getloadavg()[0]
    if load > QUIET_LOAD:
        say(f"the load is {load:.2f}: something else is running, and the numbers will show it")
    place = Place.here(asked.ranks, threads=1)
    place = replace(place, variables={**place.variables, "PYTHONPATH": str(ROOT)})
    peers = () if asked.no_peers else PEERS
    peer_python = peer_environment(asked.peers_venv) if peers and "step" in asked.parts else ""
    folder = asked.out / record.stem("all", record.head("all", "", {}, {})["date"]).removeprefix("all-")
    command = f"python benchmarks/run.py {' '.join(sys.argv[1:])}".strip()
    found = {}
    for part in asked.parts:
        measure = {"step": step, "sweep": sweep, "allreduce": allreduce, "scale": scale}[part]
        content, rows = measure(place, peers, peer_python, asked, command)
        found[part] = content
        path = record.write(folder, content)
        path = path.rename(folder / f"{part}.json")
        draw(part, path.with_suffix(".png"), rows)
        # After each part, so that what was measured is there whatever happens to the next.
        (folder / "README.md").write_text(report.text(found))
    say(str(folder / "README.md"))
    return 0


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="timed steps of a launch, instead of each workload's own number: for trying")
    parser.add_argument("--max-bytes", type=int, default=transfers.LARGEST_BYTES, help="of the allreduces")
    parser.add_argument("--workload", action="append", default=[], help="of step, again for more; default: the four")
    parser.add_argument("--no-peers", action="store_true", help="without Lightning, Accelerate and Ignite")
    parser.add_argument("--peers-venv", type=Path, default=ROOT / ".venv-peers", help="made where it is not there")
    parser.add_argument("--out", type=Path, default=HERE / "records")
    return parser


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def peer_environment(folder: Path) -> str:
    """The interpreter of the peers' environment, which is made where it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        say(f"installing the peers into {folder}")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        site = next((folder / "lib").glob("python3*/site-packages"))
        # Below its own packages those of ours: pip finds torch there, and takes no second one.
        (site / "below.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / "requirements.txt")], check=True)
    return str(python)


class Starter:
    """Starts a launch, with the peers' interpreter where the line is theirs.

    Args:
        place: this machine.
        peer_python: "" where the peers are not measured.
    """

    def __init__(self, place: Place, peer_python: str) -> None:
        self.place, self.peers = place, replace(place, python=peer_python)

    def __call__(self, line: str, command: tuple[str, ...]) -> Ended:
        return self.peers.start("torchrun", command) if line == PEER_LINE else self.place.start(line, command)

    def lines(self, chosen: tuple[Column, ...], command: tuple[str, ...]) -> dict[str, str]:
        """The command line of each column, for the record."""
        shown = {}
        for column in chosen:
            place, line = (self.peers, "torchrun") if column.line == PEER_LINE else (self.place, column.line)
            text = short_paths(str(place.line(line, command)))
            shown[column.name] = text.replace(f"{Path(place.python).parent}/", "")
        return shown


def here(place: Place, all_columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Those that can run; the peers can where torch is."""
    ours = place.those_that_can_run([c for c in all_columns if c.line != PEER_LINE], by_name=False)
    return (*ours, *(c for c in all_columns if c.line == PEER_LINE))


def measure_steps(
    kind: str, place: Place, chosen: tuple[Column, ...], peer_python: str, work: list, memory: bool, asked: Any, command: str
) -> tuple[dict, dict]:
    """A record of steps, and its rows."""
    start = Starter(place, peer_python)
    settings = {"ranks": asked.ranks, "threads": 1, "rounds": asked.rounds, "against": AGAINST}
    for_memory = here(place, columns.FOR_MEMORY) if memory else ()
    content = record.head(kind, command, settings, start.lines((*chosen, *for_memory), (*rounds.WORKER, "JOB.json")))
    if peer_python:
        content["versions"] |= peer_versions(peer_python)
    measured = rounds.measure(rounds.Plan(chosen, tuple(work), asked.ranks, 1, asked.rounds, memory, for_memory=for_memory), start, say)
    rows = {w.name: summary.rows(measured, chosen, w.name, AGAINST) for w in work}
    costs = summary.costs(measured, AGAINST)
    content |= {
        "result": {name: {row.column: row.as_dict() for row in found} for name, found in rows.items()},
        "cost_over_compute": {cost.workload: {**asdict(cost), "ns_per_param": cost.ns_per_param} for cost in costs},
        "sizes": measured.sizes,
        "round_ms": {
            name: {column.name: times for column in chosen if (times := stats.column_times(measured.times, name, column.name))}
            for name in rows
        },
        "failed": {name: short_paths(text) for name, text in measured.failed.items()},
        "said": {name: first_lines(short_paths(text)) for name, text in measured.said.items()},
        "memory": measured.memory,
        "losses": measured.losses,
        "ms_by_round_and_rank": measured.times,
    }
    return content, rows


def first_lines(text: str, number: int = 10) -> str:
    """Enough for the lines that a library prints when it starts."""
    return "\n".join(text.splitlines()[:number])


def peer_versions(python: str) -> dict[str, str]:
    """What is installed in the peers' environment."""
    names = ("lightning", "accelerate", "pytorch-ignite")
    code = f"import importlib.metadata as m; print(*(m.version(n) for n in {names!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split()))


def step(place: Place, peers: tuple[Column, ...], peer_python: str, asked: Any, command: str) -> tuple[dict, dict]:
    """All columns and peers on the four workloads, with memory."""
    work = workloads.choose(tuple(asked.workload), steps=asked.steps)
    chosen = here(place, (*columns.COLUMNS, *peers))
    return measure_steps("step", place, chosen, peer_python, work, True, asked, command)


def sweep(place: Place, peers: tuple[Column, ...], peer_python: str, asked: Any, command: str) -> tuple[dict, dict]:
    """Compute-only and ours over the number of parameters and of tensors."""
    work = workloads.choose((), sweep=True, steps=asked.steps)
    chosen = here(place, tuple(columns.BY_NAME[name] for name in (columns.COMPUTE, AGAINST)))
    return measure_steps("sweep", place, chosen, "", work, False, asked, command)


def allreduce(place: Place, peers: tuple[Column, ...], peer_python: str, asked: Any, command: str) -> tuple[dict, dict]:
    """All engines and sizes."""
    chosen = here(place, transfers.COLUMNS)
    sizes = transfers.sizes(asked.max_bytes)
    start = Starter(place, "")
    settings = {"ranks": asked.ranks, "threads": 1, "rounds": asked.rounds, "max_bytes": asked.max_bytes}
    content = record.head("allreduce", command, settings, start.lines(chosen, (*transfers.WORKER, "JOB.json")))
    work = tuple(map(transfers.workload, sizes))
    measured = rounds.measure(rounds.Plan(chosen, work, asked.ranks, 1, asked.rounds, worker=transfers.WORKER), start, say)
    content["wrong_sums"] = transfers.wrong_sums(measured.losses, chosen, asked.ranks)
    content["failed"] = {name: short_paths(text) for name, text in measured.failed.items()}
    content["round_ms"] = {
        str(size): {c.name: times for c in chosen if (times := stats.column_times(measured.times, transfers.size_text(size), c.name))}
        for size in sizes
    }
    content["ms_by_round_and_rank"] = measured.times
    middle = {c.name: {size: stats.over_rounds(content["round_ms"][str(size)][c.name]).mid for size in sizes} for c in chosen if c.name not in measured.failed}
    return content, middle


def scale(place: Place, peers: tuple[Column, ...], peer_python: str, asked: Any, command: str) -> tuple[dict, list]:
    """Compute-only and ours over 1 to `ranks` ranks, on the transformer and the wide mlp."""
    chosen = here(place, tuple(columns.BY_NAME[name] for name in (columns.COMPUTE, AGAINST)))
    counts = list(range(1, asked.ranks + 1))
    lines = Starter(place, "").lines(chosen, (*rounds.WORKER, "JOB.json"))
    content = record.head("scale", command, {"ranks": counts, "threads": 1, "rounds": asked.rounds}, lines)
    content["result"], content["ms_by_ranks_round_and_rank"], last = {}, {}, []
    for base in workloads.choose(("transformer", "wide"), steps=asked.steps):
        work = tuple(scaling.workloads(base, asked.ranks))
        plan = rounds.Plan(chosen, work, asked.ranks, 1, asked.rounds)
        measured = scaling.measure(plan, counts, lambda count: replace(place, ranks=count).start, say)
        last = scaling.points(measured, chosen)
        content["result"][base.name] = [asdict(point) for point in last]
        content["ms_by_ranks_round_and_rank"][base.name] = {str(count): found.times for count, found in measured.items()}
    return content, last


def draw(part: str, path: Path, rows: Any) -> None:
    """The picture of a part."""
    if part in ("step", "sweep"):
        plot.steps(path, rows, "median and range of the rounds; dashed: compute only")
    elif part == "allreduce":
        plot.transfers(path, rows, "allreduce of float32")
    else:
        plot.scaling(path, rows, "wide mlp")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HvdTrainerError as error:  # what was asked for cannot be: no traceback
        sys.exit(f"benchmarks/run.py: {type(error).__name__}: {error}")
