"""Speed-up and efficiency from the rounds of every number of ranks."""

import pytest

from hvd_trainer.bench import scaling
from hvd_trainer.bench.columns import BY_NAME
from hvd_trainer.bench.rounds import Plan
from hvd_trainer.bench.workloads import Workload
from hvd_trainer.errors import ConfigError
from tests.bench.answers import Pretend

COLUMNS = (BY_NAME["compute"], BY_NAME["ours-mpi"])


def test_points():
    """One rank takes 1 ms, two take 2 ms (the second is 1 ms slower), whichever way."""
    base = scaling.workloads(Workload("mlp", "", steps=8), 2)
    plan = Plan(COLUMNS, tuple(base), 2, 1, num_rounds=2)
    order = []

    def starter(num_ranks):
        order.append(num_ranks)
        return Pretend({"compute": 1.0, "ours-mpi": 1.0}, num_ranks)

    found = scaling.measure(plan, [1, 2], starter, lambda text: None)
    assert order == [1, 2, 2, 1]
    points = {(p.column, p.way, p.num_ranks): p for p in scaling.points(found, COLUMNS)}
    assert len(points) == 8
    assert points["ours-mpi", "weak", 1].efficiency.mid == 1.0
    assert points["ours-mpi", "weak", 2].speedup.mid == 1.0 and points["ours-mpi", "weak", 2].efficiency.mid == 0.5
    assert points["compute", "strong", 2].speedup.mid == 0.5 and points["compute", "strong", 2].efficiency.mid == 0.25


def test_the_strong_way_has_a_sample_for_each_rank():
    weak, strong = scaling.workloads(Workload("mlp", ""), 3, global_batch=5)
    assert (weak.model, strong.model, weak.samples(0, 3)) == ("mlp", "mlp", 32)
    assert [strong.samples(rank, 3) for rank in range(3)] == [2, 2, 1]
    with pytest.raises(ConfigError, match="--global-batch 2"):
        scaling.workloads(Workload("mlp", ""), 3, global_batch=2)
