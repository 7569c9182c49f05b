"""Importing does nothing: no torch, no MPI, no Horovod, no variable set, no handler installed."""

import subprocess
import sys

import pytest

from tests.harness import ROOT, environment

HEAVY = ("torch", "mpi4py", "horovod", "numpy")
PROGRAM = """
import logging, os, signal, sys, threading
def seen():
    handlers = signal.getsignal(signal.SIGTERM), list(logging.root.handlers)
    return dict(os.environ), sys.excepthook, sys.exit, handlers, threading.active_count()
before = seen()
{statement}
assert before == seen(), "the import changed the process"
print(*sorted(name for name in {heavy!r} if name in sys.modules))
"""
LIGHT = [
    "import hvd_trainer",
    "import hvd_trainer.cli.main",
    "import hvd_trainer.bench.rounds, hvd_trainer.bench.summary, hvd_trainer.bench.plot",
    "import hvd_trainer.doctor.checks",
    "import hvd_trainer.doctor.report",
    "import hvd_trainer.errors, hvd_trainer.env, hvd_trainer.log, hvd_trainer.values, hvd_trainer.plan",
    "import hvd_trainer.launcher.horovod_build.build",
    "import hvd_trainer.launcher.install_horovod",
]


def loaded(statement):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(statement=statement, heavy=HEAVY)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("statement", LIGHT)
def test_loads_nothing_heavy(statement):
    assert loaded(statement) == []


def test_public_names_load_torch_and_no_engine():
    found = loaded("import hvd_trainer as ht; [getattr(ht, name) for name in ht.__all__]")
    assert "torch" in found
    assert not {"mpi4py", "horovod"} & set(found)


def test_horovod_is_built_with_the_standard_library_alone():
    """`launch/install_horovod.sh` runs before anything is installed."""
    alone = "sys.path = [p for p in sys.path if 'site-packages' not in p]; import hvd_trainer.launcher.install_horovod"
    assert loaded(alone) == []
