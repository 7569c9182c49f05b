"""The files, and the command that makes them anew."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hvd_trainer.cli.main import main
from hvd_trainer.report import page
from hvd_trainer.report.write import MARK, markdown, write
from tests.harness import ROOT, environment
from tests.report.made_up import report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "report.json").write_text(json.dumps(report()))
    monkeypatch.setattr(page, "html", lambda content: f"<h1>{content['script']}</h1>")  # what is drawn: test_page.py
    return tmp_path


def test_the_search_s_own_report_stays(folder):
    (folder / "report.md").write_text("# its own\n")
    for _ in range(2):  # anew each time, and once
        assert [path.name for path in write(folder)] == ["report.html", "report.md"]
        text = (folder / "report.md").read_text()
        assert text.startswith("# its own\n") and text.count(MARK) == 1 and text.count("## Time against ranks") == 1
    assert (folder / "report.html").read_text() == "<h1>train.py</h1>"


def test_markdown_has_the_sentences_and_the_rows():
    text = markdown(report())
    assert "- optimizer **sgd**: lamb" in text and "| 2 | N x what fits in memory | 8,192 |" in text and "## Finalists" in text
    assert "- " not in markdown({"trials": []})


def test_the_command(folder):
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 0 and done.output.split() == [str(folder / "report.html"), str(folder / "report.md")]


@pytest.mark.parametrize(("content", "words"), [(None, "has no report.json"), ("{", "is no JSON"), ("[]", "has no trials")])
def test_a_folder_without_a_report(tmp_path, content, words):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 2 and words in done.output and "runs/tune" in done.output


def test_needs_no_torch_and_no_plots_to_be_imported():
    program = "import sys, hvd_trainer.report.write; print(*{'torch', 'matplotlib', 'jinja2', 'scipy', 'optuna'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.split() == [], done.stderr
