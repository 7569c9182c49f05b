"""`hvd-trainer tune`: which batch, rate, warm-up and optimizer reach a target soonest, from trials of the user's script."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hvd_trainer import cores, env
from hvd_trainer.amounts import show_count
from hvd_trainer.cli.launch import BUILD
from hvd_trainer.cli.report import write_page
from hvd_trainer.errors import ConfigError, HvdTrainerError, MissingPartError
from hvd_trainer.launcher import start as launcher_start
from hvd_trainer.launcher.pick import pick
from hvd_trainer.launcher.present import look
from hvd_trainer.launcher.spec import LAUNCHERS, LaunchSpec, check_script
from hvd_trainer.launcher.start_line import StartLine

if TYPE_CHECKING:
    from hvd_trainer.tune.ledger import Record
    from hvd_trainer.tune.search import Search

VARIABLE = "HVD_TRAINER_TRIAL"
SHOWN = 20  # trials in the live table
SAY_S = 50.0  # where the output is no terminal, what runs is said again after this long


@click.command(short_help="Find the batch, rate, warm-up and optimizer that reach a target soonest.")
@click.option("--target", required=True, metavar="METRIC<=NUMBER", help='As "val_loss<=0.42" or "test_accuracy>=0.9".')
@click.option("--budget", default="15m", show_default=True, help="Time for all trials, as 90s, 15m or 1h30m.")
@click.option("--ranks", default="2", show_default=True, help="Numbers of ranks, as 1,2: each gets a recommendation.")
@click.option("--optimizers", default="", metavar="a,b", help="As sgd,adamw,lamb. Default: the script's.")
@click.option("--micro-batch", type=click.IntRange(1), help="Samples that fit on a rank. Default: measured.")
@click.option("--noise-scale", type=click.FloatRange(0), help="In samples. Default: measured in the first trial.")
@click.option("--largest-batch", type=click.IntRange(1), help="Default: 32 times the script's, half an epoch at most.")
@click.option("--backends", default="", metavar="a,b", help="As mpi,gloo: the recommended settings' step time through each.")
@click.option("--phases/--no-phases", default=True, show_default=True, help="Measure step times, memory and rates before the search.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Trials at the same time, each on cores of its own.")
@click.option("--trials", type=click.IntRange(1), help="End after so many, if the budget is not spent before.")
@click.option("--with", "asked", type=click.Choice(["auto", *LAUNCHERS]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(1), help="CPU threads a rank. Default: the cores are divided.")
@click.option("--storage", help="File for Optuna's journal, or sqlite:///FILE. Default: trials.journal in --out.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/tune"), show_default=True, help="Folder of the result.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sampler.")
@click.option("--dry-run", is_flag=True, help="Print the launch lines and run nothing.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def tune(context: click.Context, script: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Run SCRIPT with other settings, each trial a job of its own, and write the ones that reach the target soonest.

    SCRIPT stays as it is: main(comm, config) under ht.run, with fields global_batch and lr in its config (and optimizer
    and warmup_epochs, if they are to be chosen too). Its arguments follow "--". Checkpoints and logs are not written in
    trials. Ctrl-C leaves a state: the same command goes on.

    \b
    Exit codes:
      0    every number of --ranks has a recommendation
      1    on one of them no trial came to the target, or none was run
      2    refused: an option, or a script that cannot be tuned; what was finished before is in the report
      130  interrupted

    \b
    Examples:
      hvd-trainer tune train.py --target "accuracy>=0.9" --budget 5m --ranks 1,2
      hvd-trainer tune train.py --target "val_loss<=0.42" --optimizers sgd,adamw -- --data /data
      hvd-trainer launch -np 2 train.py --config runs/tune/recommended.yaml --set folder=runs/b
    """
    try:
        context.exit(_tune(script, arguments, **options))
    except HvdTrainerError as error:
        click.echo(f"hvd-trainer tune: {error}", err=True)
        context.exit(2)


def _tune(script: str, arguments: tuple[str, ...], *, target: str, budget: str, ranks: str, optimizers: str, backends: str, storage: str | None,
          out: Path, seed: int, dry_run: bool, asked: str, threads: int | None, jobs: int, **limits: Any) -> int:  # fmt: skip
    from hvd_trainer.tune import target as words

    goal, budget_s = words.parse_target(target), words.parse_duration(budget)
    if (given := limits["noise_scale"]) is not None and not math.isfinite(given):
        raise ConfigError(f"--noise-scale {given}", "a number of samples", "--noise-scale 200, or leave it out: then it is measured")
    numbers = words.parse_whole_numbers("--ranks", ranks)
    names, through = (tuple(dict.fromkeys(name.strip().lower() for name in text.split(",") if name.strip())) for text in (optimizers, backends))
    check_script((script,))
    threads = threads if jobs == 1 else threads_of(jobs, numbers, threads)
    lines = start_lines((script, *arguments), tuple(sorted({1, *numbers})), asked, threads)  # 1: what the others are checked against
    for number in numbers:
        line = lines[number]
        click.echo(f"# {show_count(number, 'rank')}: {line}", err=not dry_run)
    if dry_run:
        return 0
    try:
        from hvd_trainer.tune import ledger, report, runner, search, side_by_side
    except ImportError as error:
        raise MissingPartError(f"hvd-trainer tune needs optuna ({error})", "optuna >= 5", "pip install optuna") from error
    out.mkdir(parents=True, exist_ok=True)
    identity = {"script": script, "arguments": list(arguments), "target": str(goal)}
    path = storage or str(out / "trials.journal")
    click.get_current_context().with_resource(ledger.alone(path))
    kept = ledger.Ledger(path, identity, seed)
    needs = ("global_batch", "lr", *(["optimizer"] if names else []))
    start_run = runner.TrialRunner(job_starter(lines), goal, needs)
    max_trials = limits.pop("trials")
    chosen = search.Options(numbers, budget_s, names, max_trials=max_trials, backends=through, **limits)
    view = View(budget_s)
    slots = None
    if jobs > 1:
        stop, processors = threading.Event(), side_by_side.shares(sorted(os.sched_getaffinity(0)), jobs)
        slots = side_by_side.SideBySide([dataclasses.replace(start_run, start=job_starter(lines, share, stop)) for share in processors], stop)
    hunt = search.Search(start_run, kept, chosen, view.change, slots)
    interrupted, refused = False, None
    try:
        with ended_like_ctrl_c(), view.live(hunt):
            hunt.run()
    except KeyboardInterrupt:
        interrupted = True
    except HvdTrainerError as error:  # what was finished before must not be lost
        if not hunt.records:
            raise
        refused = error
    records = tuple(hunt.records)
    phases, ended = hunt.phases, (refused is not None, hunt.at_trials)
    found = report.Found(script, goal, records, budget_s, limits["micro_batch"], interrupted, phases, *ended, arguments)
    for number in [*found.ranks, *sorted({*numbers} - {*found.ranks})]:
        for sentence in report.sentences(found, number):
            click.echo(sentence)
    for note in phases["notes"]:
        click.echo(note)
    for written in dict.fromkeys([*report.write(found, out), *write_page(out)]):
        click.echo(written)
    for line in report.next_lines(found, out):
        click.echo(line)
    if refused is not None:
        raise refused
    if interrupted:
        click.echo("interrupted: the same command goes on from here", err=True)
        return 130
    return 0 if all(search.best_of(records, number) for number in numbers) else 1


def start_lines(command: tuple[str, ...], numbers: tuple[int, ...], asked: str, threads: int | None) -> dict[int, StartLine]:
    """The launcher's command line for each number of ranks.

    Raises:
        HvdTrainerError: it cannot be started here.
    """
    variables = {**env.snapshot(), VARIABLE: "order.json"}  # so that launchers that list variables take it along
    present = look(sys.executable, variables, launcher_start.output, ask_slurm=asked == "srun")
    lines = {}
    for number in numbers:
        spec = LaunchSpec(number, command, sys.executable, (), threads)
        lines[number] = BUILD[pick(spec, asked, present).launcher](spec, present)
    return lines


def threads_of(jobs: int, numbers: tuple[int, ...], threads: int | None) -> int:
    """Threads of a rank where jobs run side by side.

    Raises:
        HvdTrainerError: they want more than the cores, or this system cannot keep them apart.
    """
    from hvd_trainer.tune.side_by_side import threads_for

    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError(f"--jobs {jobs}", "1 on this system, which cannot keep jobs on cores of their own", "leave --jobs out")
    return threads_for(jobs, numbers, threads, len(cores.my_cores()))


def job_starter(lines: dict[int, StartLine], processors: Sequence[int] = (), stop: threading.Event | None = None) -> Callable:
    """What `TrialRunner` calls.

    Args:
        lines: of each number of ranks.
        processors: of this slot; (): all.
        stop: see `run_job`.
    """
    from hvd_trainer.tune.job import run_job

    variables = env.snapshot()
    if processors:  # Open MPI binds by the whole machine, whatever its own processors are
        variables["PRTE_MCA_hwloc_default_cpu_list"] = ",".join(map(str, processors))
    return lambda ranks, order, timeout_s: run_job(
        lines[ranks].argv, {**variables, **lines[ranks].env, VARIABLE: order}, timeout_s, processors, stop
    )


@contextlib.contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """SIGTERM and SIGHUP end us like Ctrl-C, for the job of the trial has a session of its own and would go on."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class View:
    """The live table; where the output is no terminal, a line a trial, and what runs about once a minute.

    Args:
        budget_s: seconds.
    """

    def __init__(self, budget_s: float) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._left_s, self._since_s, self._running = budget_s, time.monotonic(), ""
        self._records: list[Record] = []
        self._search: Search | None = None

    def live(self, search: Search) -> Any:
        """A context in which the table stands at the end of the terminal, or in which lines say what runs."""
        from rich.live import Live

        self._search = search
        self.change("")
        return Live(get_renderable=self.table, console=self._console, refresh_per_second=2) if self._console.is_terminal else self._saying()

    @contextlib.contextmanager
    def _saying(self) -> Iterator[None]:
        """A log that stands still looks like a job that hangs."""
        over = threading.Event()

        def say() -> None:
            while not over.wait(SAY_S):
                if self._running and time.monotonic() - self._since_s >= 0.9 * SAY_S:
                    click.echo(f"# {self.now()}", err=True)

        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def now(self) -> str:
        """What runs, since when, and what was found so far."""
        from hvd_trainer.durations import show_duration

        elapsed_s, count = time.monotonic() - self._since_s, len(self._records)
        over = f"{show_count(count, 'trial')} {'is' if count == 1 else 'are'} over"
        return f"{self._running}: for {show_duration(elapsed_s)}; {over}, {show_duration(max(self._left_s - elapsed_s, 0))} left"

    def change(self, running: str) -> None:
        """A trial began, or ended (""): look at the ledger here, because the table is drawn by another thread."""
        ended = len(self._records)
        self._records, self._left_s = self._search.records, self._search.left_s
        self._running, self._since_s = running, time.monotonic()
        if not self._console.is_terminal:
            for record in self._records[ended:] if not running else ():
                click.echo(f"# {self.line(record)}", err=True)

    def line(self, record: Record) -> str:
        """A trial as a line."""
        from hvd_trainer.durations import show_duration
        from hvd_trainer.tune.report import table_row

        cells = table_row(record, None)
        ranks, steps = show_count(record.settings.ranks, "rank"), show_count(record.result.steps, "step")
        text = f"{cells[0]}: {ranks}, batch {cells[2]}, rate {cells[3]}, {cells[4]}: {cells[6]}, {steps} {cells[9]}".rstrip()
        reason = f" ({record.result.reason})" if record.result.reason else ""
        return f"{text}{reason}; {show_duration(max(self._left_s, 0))} left"

    def table(self) -> Any:
        """The newest trials, the best so far and the time left."""
        from rich.table import Table

        from hvd_trainer.durations import show_duration
        from hvd_trainer.tune.report import COLUMNS, table_row
        from hvd_trainer.tune.search import best_of

        elapsed_s = time.monotonic() - self._since_s if self._running else 0.0
        table = Table(*COLUMNS, title=f"{show_count(len(self._records), 'trial')}, {show_duration(max(self._left_s - elapsed_s, 0))} left", caption=self._running)
        for record in self._records[-SHOWN:]:
            best = best_of(self._records, record.settings.ranks)
            table.add_row(*table_row(record, best), style="bold green" if best == record else None)
        hidden = [record for record in self._records[:-SHOWN] if best_of(self._records, record.settings.ranks) == record]
        for record in hidden:
            table.add_row(*table_row(record, record), style="bold green")
        return table
