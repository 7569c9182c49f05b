"""Medians, ratios, agreement and cost from what was measured."""

import pytest

from hvd_trainer.bench import rounds, stats, summary, workloads
from hvd_trainer.bench.columns import BY_NAME
from tests.bench.answers import Pretend

COLUMNS = tuple(BY_NAME[name] for name in ("compute", "ours-mpi", "hvd-best"))
WORK = tuple(workloads.choose(("mlp",), steps=8))
MS = {"compute": 1.0, "ours-mpi": 2.0, "hvd-best": 5.0}


def measured(**more):
    plan = rounds.Plan(COLUMNS, WORK, 2, 1, num_rounds=6, memory=True)
    return rounds.measure(plan, Pretend(MS, **more), lambda text: None)


def test_rows():
    """Rank 1 is 1 ms slower, and the machine gets slower: the slowest rank counts, and ratios are of a round."""
    compute, ours, hvd = summary.rows(measured(drift=0.5), COLUMNS, "mlp", "ours-mpi")
    assert (compute.ms.low, compute.ms.high) == (2.0, 13.0)  # the 12th launch
    assert compute.of_limit == stats.Spread(1.0, 1.0, 1.0) and compute.loss_differs is None
    assert ours.of_limit == stats.Spread(2 / 3, 2 / 3, 2 / 3) and ours.ours_faster is None and ours.loss_differs == 0.0
    assert 1.8 < hvd.ours_faster.mid < 2.6 and hvd.peak_pss_bytes == 2 * 2**20


def test_losses_that_differ_are_seen():
    rows = summary.rows(measured(losses={"hvd-best": [1.1]}), COLUMNS, "mlp", "ours-mpi")
    assert [row.agrees for row in rows] == [True, True, False]
    assert rows[2].loss_differs == pytest.approx(0.1 / 1.1)


def test_without_the_bound_or_the_one_to_compare_with():
    found = measured(broken=["compute"])  # takes ours-mpi, which is in its launch, with it
    (row,) = summary.rows(found, COLUMNS, "mlp", "ours-mpi")
    assert (row.column, row.of_limit, row.ours_faster) == ("hvd-best", None, None)
    assert summary.rows(found, COLUMNS, "wide", "ours-mpi") == [] and summary.costs(found, "ours-mpi") == []


def test_cost_over_the_bound():
    (cost,) = summary.costs(measured(), "hvd-best")
    assert (cost.workload, cost.num_params, cost.num_tensors) == ("mlp", 1000, 2)
    assert cost.over_ms.low == 4.0 and cost.ns_per_param == cost.over_ms.mid * 1e3
