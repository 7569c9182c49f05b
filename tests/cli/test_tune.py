"""`hvd-trainer tune`: its options, its refusals, its files; with a job that trains nothing, and once for real."""

import io
import json
import re
import subprocess
import sys
import threading

import pytest
import yaml
from click.testing import CliRunner

import hvd_trainer.cli.tune as command
from hvd_trainer.cli.main import main
from hvd_trainer.tune import ledger
from hvd_trainer.tune.job import JobEnd
from tests.harness import ROOT, environment
from tests.tune.fake_job import FakeJob


@pytest.fixture
def tune(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("")

    def start(*options, job=None, target="val_loss<=0.4", page=False):
        job = job or FakeJob()
        monkeypatch.setattr(command, "job_starter", lambda lines: job)
        if not page:  # a second each time
            monkeypatch.setattr(command, "write_page", lambda folder: [])
        return CliRunner().invoke(main, ["tune", str(script), "--target", target, "--out", str(tmp_path / "out"), *options])

    start.out, start.script = tmp_path / "out", script
    return start


def test_dry_run_prints_the_lines_and_runs_nothing(tune):
    job = FakeJob()
    done = tune("--dry-run", "--ranks", "1,2", "--", "--data", "x y", job=job)
    assert done.exit_code == 0 and not job.calls and not tune.out.exists()
    assert [line.split(":")[0] for line in done.output.splitlines()] == ["# 1 rank", "# 2 ranks"]
    assert "train.py --data 'x y'" in done.output


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--budget", "soon"], "15m"), (["--ranks", "two"], "--ranks 1,2"), (["--target", "loss=1"], "val_loss<=0.42"), (["--ranks", "²"], "--ranks 1,2"), (["--noise-scale", "nan"], "leave it out")],
)
def test_wrong_options_are_refused_with_the_right_form(tune, options, words):
    done = tune(*options)
    assert done.exit_code == 2 and words in done.output


def test_a_search_ends_with_files_sentences_and_a_line_a_trial(tune):
    done = tune("--trials", "7", "--micro-batch", "2000")
    assert done.exit_code == 0, done.output
    assert "On 2 ranks: batch" in done.output and "N x what fits (batch 4000)" in done.output
    assert sum(line.endswith(" left") for line in done.output.splitlines()) == 7
    assert f"to train with it:\n  hvd-trainer launch -np 2 {tune.script} --config {tune.out}/recommended.yaml\n" in done.output
    assert {"global_batch", "lr"} <= set(yaml.safe_load((tune.out / "recommended.yaml").read_text()))


def test_a_search_writes_its_page(tune):
    done = tune("--trials", "9", "--ranks", "1,2", page=True)
    assert done.exit_code == 0 and done.output.count("report.md") == 1, done.output
    page, text = (tune.out / "report.html").read_text(), (tune.out / "report.md").read_text()
    assert "<h1>On 2 ranks, batch" in page and "</html>" in page and "All trials" in page
    assert "## What other choices would have cost" in text and text.index("| trial |") < text.index("## What is recommended")


def test_a_page_that_cannot_be_drawn_does_not_fail_the_search(tune, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    done = tune("--trials", "3", page=True)
    assert done.exit_code == 0 and "pip install jinja2" in done.output and "hvd-trainer report" in done.output
    assert (tune.out / "recommended.yaml").exists() and not (tune.out / "report.html").exists()


def test_ctrl_c_leaves_a_state_that_goes_on(tune):
    stopped = tune("--trials", "6", job=FakeJob(interrupt_at=3))
    assert stopped.exit_code == 130 and "goes on" in stopped.output
    content = json.loads((tune.out / "report.json").read_text())
    assert content["interrupted"] and len(content["trials"]) == 2
    assert "linear rule: not measured (the search was interrupted before)." in stopped.output and "to train with it" not in stopped.output
    job = FakeJob()
    assert tune("--trials", "6", job=job).exit_code == 0
    content = json.loads((tune.out / "report.json").read_text())
    assert len(job.calls) == 4 and len(content["trials"]) == 6 and not content["interrupted"]


def test_ranks_that_the_budget_did_not_come_to_are_said(tune):
    done = tune("--trials", "1", "--ranks", "1,2", "--no-phases")
    assert done.exit_code == 1 and "On 1 rank no trial was run: --trials ended the search before." in done.output and "On 2 ranks: batch" in done.output


def test_optimizers_need_a_field_for_them(tune):
    job = FakeJob()
    tune("--trials", "1", "--optimizers", "sgd,adamw", job=job)
    assert job.calls[0]["needs"] == ["global_batch", "lr", "optimizer"]


def test_another_target_in_the_same_folder_is_refused(tune):
    tune("--trials", "1")
    done = tune("--trials", "1", target="val_loss<=0.3")
    assert done.exit_code == 2 and "--storage" in done.output


def test_two_searches_in_one_folder_do_not_run_at_once(tune):
    with ledger.alone(str(tune.out.parent / "journal")):
        job = FakeJob()
        done = tune("--trials", "1", "--storage", str(tune.out.parent / "journal"), job=job)
    assert done.exit_code == 2 and "another search is under way" in done.output and not job.calls
    assert tune("--trials", "1", "--storage", str(tune.out.parent / "journal")).exit_code == 0


def test_a_script_that_is_refused_later_leaves_a_report_of_what_was_finished(tune):
    refusal = JobEnd(0, "")  # in peace, and without a run
    done = tune("--trials", "5", "--no-phases", job=FakeJob(fail=lambda fields: refusal if fields.get("global_batch", 0) > 500 else None))
    assert done.exit_code == 2 and "trained without ht.Trainer" in done.output and "not measured (an error ended the search before)" in done.output
    assert len(json.loads((tune.out / "report.json").read_text())["trials"]) == 3 and (tune.out / "recommended.yaml").exists()


def test_the_live_table_draws():
    from rich.console import Console

    view = command.View(60.0)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(view.table())
    assert "0 trials, 1m00s left" in console.export_text()


def test_without_a_terminal_a_long_trial_is_said_again(tune, monkeypatch):
    """A log in which nothing appears for an hour looks like a job that hangs."""
    monkeypatch.setattr(command, "SAY_S", 0.02)
    said_often, now, said = threading.Event(), command.View.now, []

    def count(view):
        said.append(now(view))
        if len(said) >= 3:
            said_often.set()
        return said[-1]

    monkeypatch.setattr(command.View, "now", count)

    class Slow(FakeJob):
        def __call__(self, *arguments):
            assert self.jobs != 1 or said_often.wait(30)
            return super().__call__(*arguments)

    done = tune("--trials", "2", "--no-phases", job=Slow())
    assert done.exit_code == 0 and len(said) >= 3 and all(f"# {line}" in done.output for line in said), done.output
    assert "linear rule: 2 ranks, batch 256, rate 0.8: for " in said[-1] and "; 1 trial is over, " in said[-1] and said[-1].endswith(" left")


def test_help_and_docs_name_the_exit_codes():
    help_text = CliRunner().invoke(main, ["tune", "--help"]).output
    codes = set(re.findall(r"^ +(\d+)  ", help_text, re.MULTILINE))
    assert codes == set(re.findall(r"^\| (\d+) \|", (ROOT / "docs/tune.md").read_text(), re.MULTILINE)) == {"0", "1", "2", "130"}


@pytest.mark.slow
def test_digits_for_real(tmp_path):
    """One rank, so that a busy machine does not make every sum wait; three trials and no file of the script's own."""
    options = ["--target", "test_accuracy>=0.9", "--ranks", "1", "--trials", "3", "--budget", "200s", "--out", str(tmp_path / "out"), "--threads", "1"]
    argv = [sys.executable, "-m", "hvd_trainer", "tune", str(ROOT / "examples/digits.py"), *options, "--", "--set", "epochs=3"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    trials = json.loads((tmp_path / "out/report.json").read_text())["trials"]
    assert [trial["label"] for trial in trials] == ["script's default", "N x what fits", "linear rule"]
    assert [trial["result"]["start"]["global_batch"] for trial in trials] == [64, 1437, 256]
    assert trials[2]["result"]["start"]["peak_lr"] == pytest.approx(0.8)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(1300)
def test_the_whole_way_for_real(tmp_path):
    """Two ranks, two optimizers, phases, seeds, backends; batches from 700 on are killed as the kernel does it."""
    script = ROOT / "tests/tune/tiny_script.py"
    options = ["--target", "test_accuracy>=0.85", "--ranks", "2", "--trials", "10", "--budget", "20m", "--threads", "1", "--out", str(tmp_path / "out")]
    options += ["--optimizers", "sgd,adamw", "--backends", "mpi,gloo,nccl"]
    argv = [sys.executable, "-m", "hvd_trainer", "tune", str(script), *options, "--", "--set", "break_at=700"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=1250)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((tmp_path / "out/report.json").read_text())
    phases, trials = content["phases"], content["trials"]
    assert phases["check"]["agrees"] and phases["check"]["ranks"] == 2
    assert len({point["global_batch"] for point in phases["step_time"]["points"]}) >= 3 and phases["step_time"]["fit"]["2"]["rank_batches"][0] == 8
    # Which batch is best rests on step times, here of a busy machine; that there is one, which fits, does not.
    prediction = phases["prediction"]
    fit = [row for row in prediction["rows"] if row["global_batch"] <= 2 * phases["memory"]["2"]["micro_batch"]]
    assert phases["noise"]["noise_scale"] > 0 and prediction["best"]["2"] in fit and len(fit) > 5
    memory = phases["memory"]["2"]
    assert memory["ended_by"] == "memory" and memory["micro_batch"] < 350 and "killed" in memory["note"]
    # So that "N x what fits" is no batch that is killed.
    assert {trial["result"]["outcome"] for trial in trials} <= {"target met", "cap reached", "script ended", "diverged"}
    assert {trial["result"]["start"].get("optimizer") for trial in trials} >= {"sgd", "adamw"}
    assert any(trial["settings"]["seed"] == 1 for trial in trials)
    rows = {row["backend"]: row for row in phases["backends"]}
    assert rows["mpi"]["step_s"] > 0 and rows["gloo"]["step_s"] > 0 and "nccl" in rows["nccl"]["reason"]
    again = [sys.executable, str(script), "--config", str(tmp_path / "out/recommended.yaml"), "--set", "epochs=1"]
    assert subprocess.run(again, cwd=tmp_path, env=environment(), capture_output=True, timeout=120).returncode == 0
