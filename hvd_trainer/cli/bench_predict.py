"""`hvd-trainer bench predict`."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from hvd_trainer import env
from hvd_trainer.bench import predict as forecasts
from hvd_trainer.bench import predict_table, record, start, workloads
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.cli.bench_lines import clean
from hvd_trainer.cli.bench_place import command_line, console, say, short_paths, write
from hvd_trainer.comm import launched
from hvd_trainer.errors import ConfigError, HvdTrainerError, StartError
from hvd_trainer.launcher import argv_mpirun, argv_torchrun
from hvd_trainer.launcher import start as launcher_start
from hvd_trainer.launcher.present import Present, look
from hvd_trainer.launcher.spec import Host, LaunchSpec, parse_hosts

ASSUMED_LINK = "10gbit,30us"
ENGINES = ("auto", "mpi", "torch")
WORKER = ("-m", "hvd_trainer.bench.predict_worker")


@dataclass(frozen=True)
class Asked:
    """What is to be measured.

    Args:
        workload: what is trained.
        micro_batches: sizes of the timed steps; empty: the workload's own choice.
        budget_s: seconds of each launch, about.
        engine: of `ht.init`.
        bucket_bytes: of `ht.DistributedOptimizer`; 0: its default.
        hosts: where; none: this machine.
        local_ranks: there.
        threads: CPU threads a rank.
    """

    workload: Workload
    micro_batches: tuple[int, ...]
    budget_s: float
    engine: str
    bucket_bytes: int
    hosts: tuple[Host, ...]
    local_ranks: int
    threads: int


@click.command(short_help="Step time and efficiency on more ranks, from measurements on few.")
@click.option("--ranks", "ranks_text", default="2,8,64,1024", show_default=True, metavar="N,N,...", help="Numbers of ranks to predict.")
@click.option("--ranks-per-node", type=click.IntRange(1), help="Of a full node. Default: as many as were measured.")
@click.option("--workload", "name", default="transformer", show_default=True, metavar="NAME", help=f"One of {', '.join(workloads.BY_NAME)}.")
@click.option("--script", type=click.Path(), help="A file with make(), instead of a built-in workload.")
@click.option("--micro-batch", type=click.IntRange(1), help="Samples in a forward pass. Default: the workload's own.")
@click.option("--global-batch", type=click.IntRange(1), help="Divided among the ranks (strong scaling). Default: each rank keeps its batch (weak).")
@click.option("--link", "link_text", metavar="BITS,LATENCY", help=f"Between nodes, where it was not measured. Default: {ASSUMED_LINK}.")
@click.option("--from-json", "files", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A record of this command, instead of measuring; again for more.")
@click.option("--hosts", default="", metavar="h1:2,h2:2", help="Measure on these: on the first, on two, on all. Default: this machine.")
@click.option("-np", "--measure-ranks", type=click.IntRange(2), default=2, show_default=True, help="Ranks that measure on this machine.")
@click.option("--engine", type=click.Choice(ENGINES), default="auto", show_default=True, help="Of the measurements.")
@click.option("--bucket-bytes", type=click.IntRange(0), default=0, help="Of ht.DistributedOptimizer. Default: its own.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads a rank.")
@click.option("--budget", "budget_s", type=float, default=10.0, show_default=True, help="Seconds of measuring in each launch.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/bench"), show_default=True, help="Folder for the JSON.")
@click.pass_context
def predict(
    context: click.Context, ranks_text: str, ranks_per_node: int | None, name: str, script: str | None, micro_batch: int | None,
    global_batch: int | None, link_text: str | None, files: tuple[Path, ...], hosts: str, measure_ranks: int, engine: str,
    bucket_bytes: int, threads: int, budget_s: float, out: Path,
) -> None:  # fmt: skip
    """Predict the time of a training step on more ranks: measure compute, messages and steps on few, and fit.

    Alone, the command starts its own launches. Under a launcher it measures on the ranks that it was started on. A link
    between nodes that was not measured is assumed, and the rows that need it say so.

    \b
    Examples:
      hvd-trainer bench predict --ranks 2,8,64,1024
      hvd-trainer bench predict --hosts node1:4,node2:4 --ranks 8,64,256
      hvd-trainer bench predict --from-json runs/bench/predict-2026-11-30-120000.json --ranks 64 --global-batch 4096
    """
    from hvd_trainer.cost.link import parse_link

    rank = 0
    try:
        ranks, link = forecasts.parse_ranks(ranks_text), parse_link(link_text or ASSUMED_LINK)
        workload = workloads.choose(() if script else (name,), script)[0]
        where = parse_hosts(hosts) if hosts else ()
        asked = Asked(workload, sizes_around(micro_batch), budget_s, engine, bucket_bytes, where, measure_ranks, threads)
        lines: dict[str, str] = {}
        if files:
            found = from_files(files)
        elif launched.read(env.snapshot()).size > 1:
            found, rank = measure_in_this_job(asked)
        else:
            found, lines = measure_with_launches(asked)
        if rank:
            return
        settings = {"ranks": ranks, "ranks_per_node": ranks_per_node, "micro_batch": micro_batch, "global_batch": global_batch, "link": link_text}
        head = record.head("predict", command_line(), settings, lines)
        forecast = forecasts.Forecast(found, link)
        own = micro_batch or forecast.usual_micro_batch
        rows = forecasts.rows(forecast, ranks, ranks_per_node or forecast.usual_ranks_per_node, own, global_batch)
    except HvdTrainerError as error:
        if rank == 0:
            click.echo(f"hvd-trainer bench predict: {error}", err=True)
        context.exit(2)
    screen = console()
    screen.print(predict_table.table(forecast, rows))
    for line in predict_table.notes(forecast):
        screen.print(line, style="dim")
    write(out, {**head, "result": [row.as_dict() for row in rows], "fits": forecast.as_dict(), "measurements": json.loads(found.as_json())})


def from_files(files: tuple[Path, ...]) -> Any:
    """Measurements of earlier runs, as one."""
    from hvd_trainer.cost.samples import Measurements, merged

    return merged([Measurements.read(path) for path in files])


def measure_in_this_job(asked: Asked) -> tuple[Any, int]:
    """(measurements, rank) on the ranks that a launcher started."""
    from hvd_trainer.bench.predict_worker import measure_here
    from hvd_trainer.comm.connect import init

    comm = init(engine=asked.engine)
    found = measure_here(comm, asked.workload, asked.micro_batches, asked.budget_s, asked.bucket_bytes)
    comm.close()
    return found, comm.rank


def measure_with_launches(asked: Asked) -> tuple[Any, dict[str, str]]:
    """(measurements, command line of each launch) of our own launches.

    Raises:
        StartError: a launch that failed, with the end of what it printed.
    """
    from hvd_trainer.bench.predict_worker import Job, write_job
    from hvd_trainer.cost.samples import Measurements, merged

    variables = env.snapshot()
    present = look(sys.executable, variables, launcher_start.output)
    found, lines = [], {}
    # In this folder, which hosts share; a temporary one they may not.
    with tempfile.TemporaryDirectory(prefix=".hvd_trainer-predict-", dir=Path.cwd()) as folder:
        for hosts, ranks in places(asked.hosts, asked.local_ranks):
            where = f"{ranks} ranks on {len(hosts) or 1} host{'s' if len(hosts) > 1 else ''}"
            job, out = Path(folder, f"job{len(found)}.json"), Path(folder, f"found{len(found)}.json")
            write_job(Job(asdict(asked.workload), asked.micro_batches, asked.budget_s, asked.engine, str(out), asked.bucket_bytes), job)
            line = launch_line(LaunchSpec(ranks, (*WORKER, str(job)), sys.executable, hosts, asked.threads), present)
            lines[where] = short_paths(str(line)).replace(Path(folder).name, "FOLDER")
            say(f"# {where}:\n{lines[where]}")
            ended = start.run(line.argv, {**clean(variables), **line.env})
            if ended.code != 0 or not out.exists():
                how = "did not end in time" if ended.code is None else f"ended with exit code {ended.code}"
                raise StartError(f"the measurement with {where} {how}:\n{ended.tail}", fix="see the first error above")
            found.append(Measurements.read(out))
    return merged(found), lines


def launch_line(spec: LaunchSpec, present: Present) -> launcher_start.StartLine:
    """mpirun where there is one, else torchrun on this machine.

    Raises:
        ConfigError: other hosts without MPI.
    """
    if present.mpirun and present.mpi4py:
        return argv_mpirun.build(spec, present)
    if spec.hosts:
        raise ConfigError(
            "--hosts without mpirun and mpi4py",
            "MPI, or a job that a launcher started",
            "start `hvd-trainer bench predict` itself under your launcher",
        )
    return argv_torchrun.build(spec, present)


def places(hosts: tuple[Host, ...], local_ranks: int) -> list[tuple[tuple[Host, ...], int]]:
    """(hosts, ranks) of each launch.

    Example:
        >>> [(len(h), n) for h, n in places(parse_hosts("a:2,b:2,c:2"), 1)], places((), 2)
        ([(1, 2), (2, 4), (3, 6)], [((), 2)])
        >>> [len(h) for h, _ in places(parse_hosts("a,b,c,d"), 1)]      # one rank alone shows no link
        [2, 4]
    """
    if not hosts:
        return [((), local_ranks)]
    counts = sorted({*([1] if hosts[0].slots > 1 else []), min(2, len(hosts)), len(hosts)})
    return [(hosts[:n], sum(host.slots for host in hosts[:n])) for n in counts]


def sizes_around(micro_batch: int | None) -> tuple[int, ...]:
    """Micro-batches to measure; none: the workload's own choice.

    Example:
        >>> sizes_around(32), sizes_around(1), sizes_around(None)
        ((8, 16, 32, 64), (1, 2), ())
    """
    if micro_batch is None:
        return ()
    return tuple(sorted({max(1, micro_batch // 4), max(1, micro_batch // 2), micro_batch, 2 * micro_batch}))
