"""The tables say what was measured."""

import io

from rich.console import Console

from hvd_trainer.bench import rounds, scaling, summary, tables, transfers, workloads
from hvd_trainer.bench.stats import Spread
from tests.bench.answers import Pretend


def text_of(table):
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    return out.getvalue()


def row_of(text, name):
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [name])


def test_steps():
    rows = [
        summary.Row("compute", Spread(1, 1, 2), Spread(1, 1, 1), None, None, 2**20, 2**21),
        summary.Row("hvd-best", Spread(5, 4, 6), Spread(0.2, 0.1, 0.3), Spread(2.5, 2, 3), 0.25, None, None),
    ]
    text = text_of(tables.steps(workloads.BUILT_IN[0], 26_122, rows, "ours-mpi"))
    assert "26,122 parameters" in text and "it / ours-mpi" in text
    assert row_of(text, "hvd-best") == ["hvd-best", "5.00", "(4.00..6.00)", "0.200", "(0.100..0.300)", "2.50", "(2.00..3.00)", "2e-01"]
    assert row_of(text, "compute")[-4:] == ["1", "MiB", "2", "MiB"]


def test_what_no_row_has_is_no_column():
    alone = summary.Row("ours-mpi", Spread(5, 4, 6), None, None, 0.0, None, None)
    text = text_of(tables.steps(workloads.BUILT_IN[0], 26_122, [alone], "ours-mpi"))
    assert "peak" not in text and "compute / it" not in text and "it / ours-mpi" not in text
    assert row_of(text, "ours-mpi") == ["ours-mpi", "5.00", "(4.00..6.00)", "0"] and "loss differs" in text


def test_costs():
    text = text_of(tables.costs("ours-mpi", [summary.Cost("tensors-1000", 1_024_000, 1000, Spread(1, 1, 1))]))
    assert row_of(text, "tensors-1000") == ["tensors-1000", "1,024,000", "1,000", "1.00", "(1.00..1.00)", "0.977"]


def test_transfers():
    sizes = transfers.sizes(4096)
    columns = [transfers.BY_NAME[name] for name in ("mpi", "raw-mpi", "copy", "torch")]
    plan = rounds.Plan(tuple(columns), tuple(map(transfers.workload, sizes)), 1, 1, 2)
    start = Pretend({"mpi": 0.004, "raw-mpi": 0.002, "copy": 0.001, "torch": 1.0}, num_ranks=1, broken=["torch"])
    times, rates = map(text_of, tables.transfers(rounds.measure(plan, start, lambda text: None), columns, sizes))
    assert "torch" not in times and times.splitlines()[2].split()[1:] == ["mpi", "raw-mpi", "copy"]
    assert row_of(times, "4")[2:4] == ["4.00", "(4.00..4.00)"]
    assert row_of(rates, "4")[2:] == ["1.02", "(2.00)", "2.05", "4.10"]


def test_scaling():
    point = scaling.Point("compute", "weak", 2, Spread(1, 1, 1), Spread(1.5, 1.4, 1.6), Spread(0.75, 0.7, 0.8))
    text = text_of(tables.scaling("mlp", [point]))
    assert row_of(text, "compute") == ["compute", "weak", "2", "1.00", "(1.00..1.00)", "1.50", "(1.40..1.60)", "0.750", "(0.700..0.800)"]
