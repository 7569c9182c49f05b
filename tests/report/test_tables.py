"""Tables of a search, and phases as rows whatever they hold."""

from hvd_trainer.report import tables
from hvd_trainer.report.curves import curves
from hvd_trainer.report.facts import Facts
from tests.report.made_up import report

FACTS = Facts.of(report())
CURVES = curves(FACTS)


def test_rows_have_as_many_cells_as_columns():
    for table in (tables.lost(FACTS, CURVES), tables.policies(FACTS, CURVES), tables.steps(FACTS, CURVES), tables.trials(FACTS)):
        assert table.rows and all(len(row) == len(table.columns) for row in table.rows)
        assert all("nan" not in cell and "inf" not in cell for row in table.rows for cell in row)


def test_the_best_stands_first_and_is_pointed_out():
    table = tables.trials(FACTS)
    assert table.rows[0][0] == "2" and table.rows[0][-1] == "1.00" and table.strong == (0, len(FACTS.on(2)))
    assert table.rows[table.strong[1]][0] == "1" and table.rows[table.strong[1]][-1] == "1.00"


def test_phases_as_they_stand():
    check = dict(tables.of_phase(FACTS, "check").rows)
    assert check["agrees"] == "yes" and check["global batch"] == "32" and "losses" not in check
    memory = tables.of_phase(FACTS, "memory")
    assert memory.columns[:2] == ("", "micro batch") and memory.rows[0][:2] == ("2", "4,096")
    finalists = tables.of_phase(FACTS, "finalists")
    assert dict(zip(finalists.columns, finalists.rows[0]))["seconds"] == "1.52, 1.61, 1.7"
    rows = tables.of_phase(FACTS, "prediction", "rows")
    assert len(rows.rows) == 20 and "peak lr" in rows.columns
    assert tables.of_phase(FACTS, "no such phase").rows == ()


def test_what_is_long_is_left_out():
    facts = Facts.of({"phases": {"a": [{"x": 1, "curve": list(range(9)), "deep": {"y": 1}}], "b": {}}})
    assert tables.of_phase(facts, "a") == tables.Table(("x",), (("1",),)) and tables.of_phase(facts, "b").rows == ()
