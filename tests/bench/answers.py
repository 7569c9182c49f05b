"""A starter that starts nothing: it writes the answers that ranks would have written."""

import json
from pathlib import Path

from hvd_trainer.bench.job import Job, answer_path
from hvd_trainer.bench.start import Ended


class Pretend:
    """Each column has a time of its own, and each further rank takes 1 ms more.

    Args:
        ms: {column: milliseconds}.
        num_ranks: ranks that answer.
        broken: columns whose launch fails.
        losses: {column: its losses}; by default 1.0 for all.
        drift: by how much each launch is slower than the one before, as a share of the first.
    """

    def __init__(self, ms, num_ranks=2, broken=(), losses=None, drift=0.0):
        self.ms, self.num_ranks, self.broken, self.losses = ms, num_ranks, broken, losses or {}
        self.drift, self.started = drift, []

    def __call__(self, line, command):
        job = Job.read(Path(command[-1]))
        self.started.append((line, [column.name for column in job.columns], [w.name for w in job.workloads], job.memory))
        if set(self.broken) & {column.name for column in job.columns}:
            return Ended(3, "Traceback\nValueError: broken")
        slower = 1 + self.drift * (len(self.started) - 1)
        for rank in range(self.num_ranks):
            answer = {}
            for workload in job.workloads:
                answer[workload.name] = {}
                for column in job.columns:
                    found = {"ms": [slower * (self.ms[column.name] + rank)] * 8, "losses": self.losses.get(column.name, [1.0]), "num_params": 1000, "num_tensors": 2}
                    if job.memory:
                        found |= {"peak_pss_bytes": 2**20 * (rank + 1), "peak_rss_bytes": 2**30, "launcher_pss_bytes": 2**20 * len(line)}
                    answer[workload.name][column.name] = found
            answer_path(Path(job.out), rank).write_text(json.dumps(answer))
        return Ended(0, "hvd_trainer: 2 ranks")
