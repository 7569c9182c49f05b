"""Checks `hvd-trainer bench predict` on several hosts with slow links: fit on two, predict two, three and four, measure those.

    python benchmarks/predict_hosts.py [--engine torch mpi] [--rate 400mbit 200mbit 100mbit] [--nice -10] [--out benchmarks/records]

The hosts are network namespaces of this machine (tests/cluster/hosts.sh: root, iproute2, openssh-server), their links
shaped with tc's token bucket, as `tc qdisc add dev eth0 root tbf rate RATE burst 256kb latency 50ms`. They share the
machine's cores, so the compute of a step is a sleep (predict_hosts_model.py); parameters, gradients, buckets and messages
are real. The fit sees two hosts only: messages of the usual sweep and steps with micro-batches 8 and 32. It is compared
with other launches on two hosts, and with three and four, at micro-batch 16. Everything is measured in rounds, and the
repetitions of all rounds are put together. `--nice` gives the ranks priority on a machine that is shared; its load is recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from hvd_trainer.bench import record
from hvd_trainer.bench.predict import Forecast
from hvd_trainer.bench.predict_worker import Job, write_job
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.cost.samples import ALLREDUCE, STEP, Measurements, merged

ROOT = Path(__file__).resolve().parents[1]
HOSTS_SH = ROOT / "tests/cluster/hosts.sh"
HOSTS = ("h1", "h2", "h3", "h4")
FIT, CHECK = (8, 32), (16,)
BAR = 0.20
# Over messages of 256 KB the ranks of Open MPI, which poll, lose more time to the two cores that they share than to the link.
BUCKET_BYTES = {"torch": 0, "mpi": 4 << 20}


class Hosts:
    """Namespaces that are there as long as the block runs."""

    def __init__(self, names):
        self.names = names

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="hosts.")
        subprocess.run([HOSTS_SH, "up", self.folder, *self.names], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run([HOSTS_SH, "down", self.folder], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def on(self, host, command, timeout_s=240):
        return subprocess.run(
            [HOSTS_SH, "on", self.folder, host, "timeout", "-k", "5", str(timeout_s), *map(str, command)],
            env=environment(), cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            start_new_session=True,  # --nice is of a session, and must not stay with the caller's
        )  # fmt: skip

    def shape(self, rate):
        """The same rate out of every host."""
        for host in self.names:
            words = f"tc qdisc replace dev eth0 root tbf rate {rate} burst 256kb latency 50ms"
            done = self.on(host, words.split())
            assert done.returncode == 0, done.stderr


def environment():
    """Ours, with one thread a rank."""
    return {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
        "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }  # fmt: skip


def measure(hosts, num_hosts, engine, sizes, budget_s, nice):
    """One launch: one rank on each of the first hosts."""
    with tempfile.TemporaryDirectory(prefix="predict-hosts.") as folder:
        out, job = Path(folder, "found.json"), Path(folder, "job.json")
        workload = Workload("sleeper", "", script=str(ROOT / "benchmarks/predict_hosts_model.py"))
        write_job(Job(asdict(workload), sizes, budget_s, engine, str(out), BUCKET_BYTES[engine]), job)
        mpirun = Path(sys.executable).parent / "mpirun"
        where = ",".join(f"{host}:1" for host in hosts.names[:num_hosts])
        passed = [word for name in ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS") for word in ("-x", name)]
        # Linux shares the cores among sessions first; nice counts only within one.
        before = ["bash", "-c", 'echo "$0" >/proc/self/autogroup; exec nice -n "$0" "$@"', str(nice)] if nice else []
        ranks = [*before, sys.executable, "-m", "hvd_trainer.bench.predict_worker", job]
        done = hosts.on("h1", [mpirun, *passed, "--host", where, "--bind-to", "none", *ranks])
        if done.returncode or not out.exists():
            raise SystemExit(f"{num_hosts} hosts, {engine}: exit code {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return Measurements.read(out)


def compare(forecast, found, num_hosts):
    """Predicted and measured, for the buckets of a step alone and for whole steps."""
    rows = []
    for sample in found.messages:
        if sample.kind == ALLREDUCE and sample.sizes == found.buckets:
            rows.append(("buckets", forecast.links.buckets(found.buckets, num_hosts, 1), sample.typical_s))
    for sample in found.steps:
        if sample.kind == STEP:
            rows.append((f"step, micro-batch {sample.micro_batch}", forecast.row(num_hosts, 1, sample.micro_batch).step, sample.typical_s))
    return [
        {
            "hosts": num_hosts, "what": what, "predicted_ms": round(guess.value * 1e3, 2), "measured_ms": round(truth * 1e3, 2),
            "interval_ms": [round(guess.low * 1e3, 2), round(guess.high * 1e3, 2)], "error": round(guess.value / truth - 1, 4),
        }
        for what, guess, truth in rows
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", nargs="+", default=["torch", "mpi"], choices=sorted(BUCKET_BYTES))
    parser.add_argument("--rate", nargs="+", default=["400mbit", "200mbit", "100mbit"])
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--budget", type=float, default=4.0, help="seconds of measuring in each launch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nice", type=int, default=0, help="of the ranks")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/records")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the hosts go away too
    head = record.head("predict-hosts", shlex.join(["python", "benchmarks/predict_hosts.py", *sys.argv[1:]]), {k: v for k, v in vars(given).items() if k != "out"}, {})
    launches, loads = {}, []
    with Hosts(HOSTS) as hosts:
        # In rounds over everything: what disturbs the machine for a minute must not hit all launches of one row.
        for number in range(given.rounds):
            for rate in given.rate:
                hosts.shape(rate)
                for engine in given.engine:
                    for what, num_hosts, sizes in [("fit", 2, FIT), *((f"check {n}", n, CHECK) for n in given.hosts)]:
                        found = measure(hosts, num_hosts, engine, sizes, given.budget, given.nice)
                        launches.setdefault((rate, engine), {}).setdefault(what, []).append(found)
                        loads.append(round(os.getloadavg()[0], 1))
            print(f"round {number + 1} of {given.rounds}, load {min(loads)} to {max(loads)}", flush=True)
    results, samples = [], {}
    for (rate, engine), parts in launches.items():
        forecast = Forecast(merged(parts["fit"]))
        for num_hosts in given.hosts:
            for row in compare(forecast, merged(parts[f"check {num_hosts}"]), num_hosts):
                results.append({"rate": rate, "engine": engine, **row})
                print("{rate:>8} {engine:>6} {hosts} hosts  {what:22} predicted {predicted_ms:8.1f} ms  measured {measured_ms:8.1f} ms  {error:+.1%}".format(**results[-1]))
        kept = {what: [json.loads(found.as_json()) for found in several] for what, several in parts.items()}
        samples[f"{rate} {engine}"] = {"fits": forecast.as_dict(), **kept}
    worst = max(results, key=lambda row: abs(row["error"]))
    print(f"worst {worst['error']:+.1%}: {worst['rate']} {worst['engine']} {worst['hosts']} hosts {worst['what']}; load {min(loads):.1f} to {max(loads):.1f}")
    path = record.write(given.out, {**head, "bar": BAR, "loads": loads, "worst_error": worst["error"], "result": {"rows": results}, "samples": samples})
    path.write_text(path.read_text().replace(f"{ROOT}/", ""))
    print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return 0 if abs(worst["error"]) <= BAR else 1


if __name__ == "__main__":
    raise SystemExit(main())
