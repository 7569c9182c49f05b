"""The README of a record: machine, launch lines, tables and the bars, as Markdown (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional

from benchmarks import bars
from hvd_trainer.bench import stats, transfers
from hvd_trainer.bench.stats import Spread, significant

MIB = 2**20
FEWEST_ROUNDS = 3


def text(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page.

    Args:
        records: {part: its record}, at least one.
    """
    first = next(iter(records.values()))
    lines = [f"# Measured on {first['date'][:10]}", "", f"    {first['command']}", ""]
    machine = first["machine"]
    quiet = f"load when it began {machine['load'][0]:g}"
    lines += [f"{machine.get('cpu', 'unknown CPU')}, {machine['cores']} cores, {machine.get('memory_gib', '?')} GiB, Linux {machine['kernel']}; {quiet}. "
              + ", ".join(f"{name} {version}" for name, version in first["versions"].items()) + "."]  # fmt: skip
    lines += ["", "Each number: median of the rounds (smallest..largest); a round: the slowest rank's own median; ratios are taken",
              "round by round. All samples are in the JSON files."]  # fmt: skip
    few = min(record["settings"]["rounds"] for record in records.values())
    if few < FEWEST_ROUNDS:
        lines += ["", f"**Only {few} round{'s' if few > 1 else ''}: the ranges say nothing, and so do the verdicts.**"]
    verdicts = bars.verdicts(records)
    if verdicts:
        lines += ["", "## The bars", ""]
        rows = ([v.what, v.asks, v.found.text(), v.reach.text() if v.reach else "", v.says] for v in verdicts)
        lines += table(("ratio", "asked for", "measured", "compute-only in its place", "verdict"), rows)
    for part, record in records.items():
        lines += ["", f"## {part}", "", f"![{part}]({part}.png)", ""]
        lines += {"step": of_steps, "sweep": of_sweep, "allreduce": of_allreduces, "scale": of_scaling}[part](record)
        for name, why in record.get("failed", {}).items():
            lines += ["", f"{name} was left out: it {why.splitlines()[0]}"]
        lines += ["", "Launch lines:", "", "```", *launch_lines(record["lines"]), "```"]
    return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table.

    Example:
        >>> table(("a", "b"), [("1", "2")])
        ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]


def launch_lines(lines: Mapping[str, str]) -> list[str]:
    """Each line once, below the names of its columns."""
    by_line: dict[str, list[str]] = {}
    for name, line in lines.items():
        by_line.setdefault(line, []).append(name)
    return [text for line, names in by_line.items() for text in (f"# {', '.join(names)}", line)]


def shown(spread: Optional[Mapping[str, float]]) -> str:
    """A spread from JSON, or nothing."""
    return "" if spread is None else Spread(**spread).text()


def of_steps(record: Mapping[str, Any]) -> list[str]:
    """A table for each workload."""
    lines = []
    for workload, found in record["result"].items():
        if not found:
            continue
        rows = [
            [name, shown(row["ms"]), shown(row["of_limit"]), shown(row["ours_faster"]), differs(row["loss_differs"]), mib(row["peak_pss_bytes"]), mib(row["peak_rss_bytes"])]
            for name, row in found.items()
        ]  # fmt: skip
        head = ("column", "ms a step", "compute / it", f"it / {bars.OURS}", "loss differs", "peak PSS", "peak RSS")
        lines += [f"### {workload}, {record['sizes'][workload]['num_params']:,} parameters", "", *table(head, rows), ""]
        lines += of_memory(record.get("memory", {}).get(workload, {}))
    return lines[:-1]


def of_memory(memory: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """A rank's PSS beside DDP's, under its own launcher and under ours; and what the whole job holds, the launcher included.

    A rank's PSS alone flatters who starts ranks from a process that has loaded torch: it shares torch's pages with them.

    Args:
        memory: of one workload; [] for records without launchers' memory.
    """
    shown_here = [name for name in (bars.OURS, bars.LIMIT, bars.DDP, bars.DDP_MPIRUN, bars.BEST) if name in memory]
    if bars.OURS not in shown_here or any(ranks[0].get("launcher_pss_bytes") is None for ranks in memory.values()):
        return []
    rows = []
    for name in shown_here:
        ranks = memory[name]
        jobs = [of_job(memory[bars.OURS]), of_job(ranks)]
        numbers = (mib(max(rank["peak_pss_bytes"] for rank in ranks)), mib(ranks[0]["launcher_pss_bytes"]), mib(jobs[1] / len(ranks)))
        ratios = (bars.over_ranks(memory[bars.OURS], ranks).mid, jobs[0] / jobs[1])
        rows.append([name, *numbers, *("" if name == bars.OURS else significant(ratio) for ratio in ratios)])
    head = ("column", "peak PSS of a rank", "PSS of its launcher", "the job's, divided by its ranks", f"a rank of {bars.OURS} / it", f"the job of {bars.OURS} / it")
    return [*table(head, rows), ""]


def of_job(ranks: Sequence[Mapping[str, Any]]) -> int:
    """PSS of all processes of a launch."""
    return sum(rank["peak_pss_bytes"] for rank in ranks) + ranks[0]["launcher_pss_bytes"]


def of_sweep(record: Mapping[str, Any]) -> list[str]:
    """Cost over compute-only."""
    rows = []
    for workload, cost in record["cost_over_compute"].items():
        found = record["result"][workload]
        times = [shown(found[name]["ms"]) for name in (bars.LIMIT, bars.OURS)]
        numbers = (f"{cost['num_params']:,}", f"{cost['num_tensors']:,}")
        rows.append([workload, *numbers, *times, shown(cost["over_ms"]), significant(cost["ns_per_param"])])
    head = ("workload", "parameters", "tensors", "compute-only ms", "ours ms", "cost ms", "ns a parameter")
    return table(head, rows)


def of_allreduces(record: Mapping[str, Any]) -> list[str]:
    """Microseconds and GB/s."""
    names = list(dict.fromkeys(name for found in record["round_ms"].values() for name in found))
    rows = []
    for size, found in record["round_ms"].items():
        cells = []
        for name in names:
            spread = stats.over_rounds([1e3 * ms for ms in found[name]])
            cells.append(f"{spread.text()}, {significant(transfers.gb_per_s(int(size), spread.mid / 1e3))}")
        rows.append([transfers.size_text(int(size)), *cells])
    return ["Microseconds, GB/s of the tensor's bytes.", "", *table(("bytes", *names), rows), *(["", *record["wrong_sums"]] if record["wrong_sums"] else [])]


def of_scaling(record: Mapping[str, Any]) -> list[str]:
    """A table for each workload."""
    lines = []
    for workload, points in record["result"].items():
        rows = [
            [p["column"], p["way"], str(p["num_ranks"]), shown(p["ms"]), shown(p["speedup"]), shown(p["efficiency"])] for p in points
        ]
        lines += [f"### {workload}", "", *table(("column", "way", "ranks", "ms a step", "speed-up", "efficiency"), rows), ""]
    return lines[:-1]


def differs(value: Optional[float]) -> str:
    """A relative difference, or nothing."""
    return "" if value is None else f"{value:.0e}" if value else "0"


def mib(num_bytes: Optional[float]) -> str:
    """Bytes as MiB, or nothing."""
    return "" if num_bytes is None else f"{num_bytes / MIB:.0f} MiB"
