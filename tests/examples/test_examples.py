"""The examples do what they say, under every launcher, with the same result."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.examples.start import read, run_example, run_here
from tests.harness import ROOT, environment, need, run_ranks

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LONGEST = 80  # lines, with the docstring
KEYS = {"test_accuracy", "ranks", "samples_per_s", "lr_peak"}


@cache
def alone(name, folder):
    """The result of one process: what every other run is compared with."""
    return run(name, "alone", Path(folder) / "alone.json")


def run(name, launcher, file):
    settings = {"checkpoints": file.with_suffix("")} if name == "digits.py" else {}
    if name == "own_loop.py" and launcher == "alone":
        text, result = run_here(name, file)
        line = r"^epoch \d+  loss \d\.\d{4}  [\d,]+ samples/s  accuracy 0\.\d{4}$"  # numbers for people: it was 1.134e+04
        assert len(re.findall(line, text, re.MULTILINE)) == 15, text
        return result
    return run_example(name, launcher, 1 if launcher == "alone" else 2, file, **settings)[1]


def check(result, name, folder):
    """Good, and as on one process."""
    assert result["test_accuracy"] >= 0.97
    assert round(result["test_accuracy"], 3) == round(alone(name, folder)["test_accuracy"], 3)
    assert result["lr_peak"] == pytest.approx(0.2)  # 0.1 for a batch of 32, and a global batch of 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("digits.py", "alone"),
        pytest.param("digits.py", "mpirun", marks=pytest.mark.proof),  # as horovodrun below, the README's script, and mpirun in tests/cluster
        ("own_loop.py", "alone"),
        ("own_loop.py", "mpirun"),
    ],
)
def test_result_is_good_and_the_same_under_every_launcher(name, launcher, folder, tmp_path):
    result = alone(name, folder) if launcher == "alone" else run(name, launcher, tmp_path / "result.json")
    check(result, name, folder)


def test_digits_as_people_type_it(folder, tmp_path):
    """`horovodrun` with no option but -np, in a folder of the user's own."""
    need("horovod", "horovodrun", environment())
    file = tmp_path / "result.json"
    command = ["horovodrun", "-np", "2", "python", str(ROOT / "examples/digits.py"), "--json", str(file)]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "batch         64 = 2 ranks x 32" in done.stdout
    assert list((tmp_path / "runs" / "digits").glob("step-*"))
    check(read(file, 2), "digits.py", folder)


@pytest.mark.slow  # tests/comm/test_faults.py has the same with a program of ten lines
def test_own_loop_ends_the_whole_job_when_one_rank_raises(tmp_path):
    """The guard that `ht.init` installs is enough; there is no `ht.run` around a loop of one's own."""
    text = (ROOT / "examples/own_loop.py").read_text()
    line = "        opt.step()\n"
    assert text.count(line) == 1
    broken = tmp_path / "own_loop.py"
    broken.write_text(text.replace(line, line + "        assert comm.rank == 0 or epoch < 1, 'on purpose'\n"))
    run_ranks("mpirun", 2, [broken], timeout_s=120).failed("rank 1 of 2", "on purpose")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_is_short_and_says_how_to_start_it(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST
    doc = ast.get_docstring(ast.parse(text), clean=False)
    assert re.search(rf"^ +python examples/{path.name}", doc, re.M)
    assert re.search(rf"^ +(mpirun|horovodrun) -np 2 python examples/{path.name}", doc, re.M)
