"""benchmarks/large_batch: rows grow until their best is inside, ranks share cells, verdicts say what the numbers say."""

import json
import math
import threading

import pytest

from benchmarks.large_batch import judge, judge_tune, page, plan, run
from benchmarks.large_batch.cells import CAP, DIVERGED, MET, Cell, Row, best_of_row
from benchmarks.large_batch.share import Results, meet, run_shared

SMALLEST, CRITICAL, TOP = 130.0, 200.0, 0.6


def trained(cell, best_times=1.0):
    """A training whose steps lie on a hyperbola where the rate is best; above 1.6 times that it diverges."""
    best_lr = TOP / (1 + CRITICAL / cell.batch) * best_times
    steps = SMALLEST * (1 + CRITICAL / cell.batch) * (1 + math.log(cell.lr / best_lr) ** 2)
    outcome = DIVERGED if cell.lr > 1.6 * best_lr else MET if steps <= cell.cap else CAP
    steps = {MET: round(steps), CAP: cell.cap, DIVERGED: 7}[outcome]
    return {**vars(cell), "outcome": outcome, "steps": steps, "gap": 0.04, "checks": [[steps, 0.42]], "losses": [2.0, 1.0], "train_s": steps * 0.001, "wall_s": 0.0}


def grid(best_times=1.0):
    """All cells, run until no row grows."""
    cells = {}
    rows = [plan.SGD.row(batch) for batch in plan.BATCHES]
    while missing := [cell for row in rows for cell in row.wanted(cells) if cell.key not in cells]:
        cells |= {cell.key: trained(cell, best_times) for cell in missing}
    return {"cells": list(cells.values()), "seconds": 100.0}


def noisy(batch, seed, scale, truth):
    """A noise run."""
    cell = plan.SGD.cell(batch, judge.bests(truth["cells"])[batch]["lr"], seed, ranks=2, micro_batch=batch // 8, noise=True)
    found = trained(cell)
    return {**found, "noise_scale": {"mean": scale, "low": scale / 2, "high": scale * 2, "at_end": scale, "text": f"{scale}"}, "noise_windows": [[8.5, scale], [24.5, None]]}


def noise(scale, truth):
    return {"cells": [noisy(batch, seed, scale, truth) for batch in plan.NOISE_BATCHES["mlp"] for seed in plan.SEEDS]}


@pytest.mark.parametrize("best_times", [0.2, 1.0, 5.0])
def test_rows_grow_until_the_best_is_inside(best_times):
    found = judge.bests(grid(best_times)["cells"])
    assert list(found) == list(plan.BATCHES)
    for batch, best in found.items():
        assert not best["on_edge"]
        assert best["lr"] == pytest.approx(TOP / (1 + CRITICAL / batch) * best_times, rel=0.3)


def test_row_goes_down_where_all_diverged_and_up_where_none_got_there():
    row = Row(Cell(64, 0.0, 0, cap=100), 0.1, 2.0, 0, 1, (0,))
    for outcome, added in ((DIVERGED, 0.05), (CAP, 0.4)):
        results = {cell.key: {"outcome": outcome, "steps": 100} for cell in row.wanted({})}
        assert added in [cell.lr for cell in row.wanted(results)]


def test_verdicts_of_a_perfect_grid_and_run():
    truth = grid()
    said = judge.of_grid(truth) + judge.of_noise(noise(CRITICAL, truth), truth)
    assert len(said) == 8 and all(verdict.met for verdict in said)


def test_misses_are_missed():
    truth = grid()
    wrong = {verdict.what: verdict for verdict in judge.of_noise(noise(5 * CRITICAL, truth), truth)}
    assert all(verdict.met is False for verdict in wrong.values())
    edge = {"cells": [cell for cell in truth["cells"] if cell["batch"] != 64 or cell["lr"] <= judge.bests(truth["cells"])[64]["lr"]]}
    assert "at batches [64]" in judge.of_grid(edge)[0].found and judge.of_grid(edge)[0].met is False
    late = {"cells": [{**cell, "gap": None} if cell["batch"] == 16 else cell for cell in truth["cells"]]}
    assert judge.of_grid(late)[2].met is False
    bumpy = {"cells": [{**cell, "steps": cell["steps"] * 2} if cell["batch"] == 256 else cell for cell in truth["cells"]]}
    assert judge.of_grid(bumpy)[3].met is False


def rates_record(truth, scale):
    rates = {plan.MAIN_BATCH: plan.rule_rates(scale, plan.MAIN_BATCH, judge.bests(truth["cells"])[plan.MAIN_BATCH]["lr"], plan.BATCHES)}
    cells = [trained(cell) for cell in plan.rule_cells(rates[plan.MAIN_BATCH], plan.SEEDS)]
    return json.loads(json.dumps({"noise_scale": scale, "rates": rates, "cells": cells}))


def test_rules_beside_the_grid():
    truth = grid()
    ours, linear, _ = judge.of_rates(rates_record(truth, CRITICAL), truth)
    assert ours.met and "no divergence" in ours.found
    assert linear.met is None and "diverged at [" in linear.found and "4096]" in linear.found
    assert judge.of_rates(rates_record(truth, 100 * CRITICAL), truth)[0].met is False  # as the linear rule: diverges


def test_same_training_on_one_rank_and_on_two():
    truth = grid()
    rows = judge.same_as_alone(noise(CRITICAL, truth), truth)
    assert len(rows) == 6 and all(row["alone"] == row["together"] and row["loss"] == 0 for row in rows)


def times(factor=1.0):
    """Steps of a model with a kink in none of its parts; the held-out ones are off by `factor`."""
    steps = []
    for batch in plan.BATCHES:
        off = factor if batch in plan.HELD_OUT else 1.0
        steps += [["gradient", batch, 1, [1e-4 + 1e-6 * batch] * 3], ["local step", batch, 1, [off * (2e-4 + 1e-6 * batch)] * 3]]
        steps.append(["step", batch, 2, [off * (4e-4 + 1e-6 * batch / 2)] * 3])
    return {"steps": steps, "messages": [[[4096], [1e-5] * 3], [[407080], [2e-4] * 3]]}


def test_step_times_are_judged_on_sizes_that_were_not_fitted():
    assert judge.of_times(times())[0].met
    missed = judge.of_times(times(1.3))[0]
    assert missed.met is False and "8 points" in missed.found


def test_divided_batch():
    cells = [{"ranks": ranks, "micro_batch": micro, "losses": [2.0] * plan.DIVISION_STEPS} for ranks, micro in plan.DIVISIONS]
    assert judge.of_division({"cells": cells})[0].met
    cells[2]["losses"] = [2.0] * 49 + [2.001]
    assert judge.of_division({"cells": cells})[0].met is False
    cells[2]["losses"] = [2.0] * 49
    assert judge.of_division({"cells": cells})[0].met is False  # not all steps


def tuned(batch, lr, train_s=0.1):
    """A report of `tune` with one trial that met the target on each number of ranks, and one that did not."""
    trials = []
    for ranks in (1, 2):
        start = {"global_batch": batch, "peak_lr": lr, "optimizer": "sgd", "warmup_steps": 0}
        fields = {"global_batch": batch, "lr": lr * 64 / batch}
        settings = {"ranks": ranks, "global_batch": batch}
        met = {"outcome": "target met", "steps": 200, "step_s": 0.001, "train_s": train_s, "start": start, "config": {"config": fields}}
        trials += [{"label": "search", "settings": settings, "result": met}]
        trials += [{"label": "N x what fits", "settings": settings, "result": {**met, "outcome": "diverged", "steps": 3}}]
    report = {"trials": trials, "recommended": {str(ranks): fields for ranks in (1, 2)}, "sentences": {"2": ["Because."]}}
    cells = [{**trained(Cell(batch, lr, seed, 1000)), "optimizer": "sgd"} for seed in plan.SEEDS]
    found = {"report": report, "cells": cells, "times": {"steps": [["local step", batch, 1, [2e-4 + 1e-6 * batch]], ["step", batch, 2, [4e-4 + 1e-6 * batch / 2]]]}}
    return {**found, "wall_s": 100 * train_s, "tune_command": "hvd-trainer tune"}


def test_tune_is_judged_by_its_recommendation_trained_again_and_by_its_cost():
    truth = grid()
    good = judge_tune.of_tune(tuned(200, 0.3), truth, times())
    assert [verdict.met for verdict in good if verdict.asks != judge.NO_BAR] == [True] * 4
    assert [verdict.found for verdict in good[1:3]] == ["none: batch 200, diverged after 3 steps", "tune did not run it"]
    bad = judge_tune.of_tune(tuned(4096, 0.3, train_s=1e3), truth, times())
    assert [verdict.met for verdict in bad if verdict.asks != judge.NO_BAR] == [False] * 4
    nothing = tuned(200, 0.3)
    nothing["report"]["recommended"] = {}
    assert [verdict.met for verdict in judge_tune.of_tune(nothing, truth, times())][:2] == [False, False]


def test_cost_of_tune_has_the_phases_too():
    report = tuned(200, 0.3)["report"]
    before = judge_tune.tune_train_s(report)
    report["phases"] = {"step_time": {"points": [{"wall_s": 1.5}], "wall_s": None}, "note": "", "memory": {"2": {"wall_s": 2.0}}}
    assert judge_tune.tune_train_s(report) == pytest.approx(before + 7.0)


def test_full_grid_leaves_out_what_rows_grew_by():
    cells = [{"batch": 16, "lr": lr, "seed": 0, "outcome": MET, "steps": steps, "cap": 999, "gap": 0.04, "train_s": 1.0}
             for lr, steps in ((1, 500), (2, 400), (4, 300), (8, 200), (16, 100), (32, 150))]  # fmt: skip
    assert judge_tune.full_grid_s(cells) == 4.0


def test_page_has_every_part_and_every_verdict():
    truth = grid()
    head = {"command": "python benchmarks/large_batch/run.py", "date": "2026-11-30T12:00:00+00:00", "machine": {"cores": 2, "load": [0.1]},
            "versions": {"torch": "2"}, "settings": {"target": 0.42, "ranks": 2, "model": "mlp", "quick": False, "num_valid": 10000}, "seconds": 100.0}  # fmt: skip
    others = [trained(plan.OTHERS[1].cell(batch, 0.003)) for batch in (64, 256, 1024)]
    division = {"cells": [{"ranks": ranks, "micro_batch": micro, "losses": [2.0] * 50} for ranks, micro in plan.DIVISIONS]}
    parts = {"grid": truth, "noise": noise(CRITICAL, truth), "rates": rates_record(truth, CRITICAL), "times": times(), "division": division,
             "tune": tuned(200, 0.3), "optimizers": {"cells": others, "noise_cells": []}}  # fmt: skip
    text = page.text({part: {**head, **content} for part, content in parts.items()})
    assert text.count("| met |") == len(page.verdicts({part: {**head, **content} for part, content in parts.items()})) - 6  # two rules and four speed-ups have no bar
    for title in ("Grid", "Noise scale from one run", "Rates by rule", "Step times", "Batch 256 divided", "tune", "Other optimizers"):
        assert f"\n## {title}\n" in text
    assert "missed" not in text
    assert json.loads(run.as_text({"cells": others, "seconds": 1.0}))["cells"][0]["batch"] == 64


def test_best_of_a_row_that_never_got_there():
    best = best_of_row([{"lr": lr, "seed": 0, "outcome": CAP, "steps": 9, "cap": 9, "gap": None} for lr in (1, 2, 4)])
    assert math.isinf(best["steps"]) and best["on_edge"]


def test_ranks_share_cells_each_once_and_a_second_start_goes_on(tmp_path):
    (tmp_path / "claims").mkdir()
    row = Row(plan.SGD.cell(64), 0.1, 1.5, -2, 1, (0, 1))
    ran = []

    def rank(number):
        results = Results(tmp_path, number)
        run_shared([row], [plan.SGD.cell(256, 0.3)], results, lambda cell: ran.append(cell.key) or trained(cell), lambda line: None)
        meet(tmp_path, "end", number, 2)

    def both():
        threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in threads)

    both()
    assert len(ran) == len(set(ran)) >= 9
    assert set(Results(tmp_path, 0).refresh()) == set(ran)
    before = len(ran)
    both()
    assert len(ran) == before
