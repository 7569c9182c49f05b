"""The commands, through click, and on a machine without torch, MPI or Horovod."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_trainer.cli import install_horovod as handed
from hvd_trainer.cli.main import main
from hvd_trainer.doctor import checks
from hvd_trainer.doctor.finding import Finding

ROOT = Path(__file__).resolve().parents[2]


def test_install_horovod_hands_over_its_words_and_its_exit_code(monkeypatch):
    seen = []
    monkeypatch.setattr(handed.command, "main", lambda words: seen.append(words) or 3)
    done = CliRunner().invoke(main, ["install-horovod", "--no-repairs", "--jobs", "2", "--help"])
    assert seen == [["--no-repairs", "--jobs", "2", "--help"]] and done.exit_code == 3


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_doctor_ends_with_1_only_when_training_cannot_work(monkeypatch, state, code):
    monkeypatch.setattr(checks, "run_all", lambda: [Finding("a", state, "text", "fix it")])
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == code and "text" in done.output and "fix it" in done.output


def test_doctor_json(monkeypatch):
    monkeypatch.setattr(checks, "run_all", lambda: [Finding("a", "ok", "text")])
    assert json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)[0]["name"] == "a"


def test_the_command_line_loads_no_heavy_package():
    code = (
        "import sys; from hvd_trainer.cli.main import main; "
        "sys.exit(','.join(m for m in ('torch', 'mpi4py', 'horovod', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1) and done.stderr.strip() == ""


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "hvd_trainer", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "install-horovod" in done.stdout and "doctor" in done.stdout
