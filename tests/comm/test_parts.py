"""The real answers on this machine, and what they say of parts that do not load."""

from __future__ import annotations

import pytest

from hvd_trainer.comm.choose import Choice, choose
from hvd_trainer.comm.launched import Launched
from hvd_trainer.comm.parts import InstalledParts


def test_real_parts_answer_without_starting_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = InstalledParts()
    assert isinstance(parts.mpi_problem(), str) and isinstance(parts.gpus(), int)
    assert parts.horovod_installed() or (parts.horovod_problem(), parts.horovod_backends()) == (
        "Horovod is not installed",
        frozenset(),
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert parts.own_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert not parts.own_gpu()


def test_parts_that_do_not_load_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd_trainer.comm import horovod, mpi

    def broken() -> None:
        raise RuntimeError("cannot load MPI library\nlibmpi.so.40: cannot open shared object file")

    monkeypatch.setattr(mpi, "load", broken)
    monkeypatch.setattr(horovod, "load", broken)
    monkeypatch.setattr("hvd_trainer.comm.parts.module_exists", lambda name: True)
    assert InstalledParts().mpi_problem() == "mpi4py does not work (cannot load MPI library)"
    assert InstalledParts().horovod_problem() == "Horovod does not load (cannot load MPI library)"
    assert InstalledParts().horovod_backends() == frozenset()
    assert choose("auto", "auto", Launched(), InstalledParts()) == Choice("single", "none", "one process")
