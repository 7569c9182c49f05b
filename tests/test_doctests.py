"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import inspect
import pkgutil
import re
import types

import pytest

import hvd_trainer
from hvd_trainer.comm import connect


def module_names():
    names = [module.name for module in pkgutil.walk_packages(hvd_trainer.__path__, "hvd_trainer.")]
    return ["hvd_trainer", *(name for name in names if not name.endswith("__main__"))]


@pytest.fixture(autouse=True)
def closed_afterwards():
    yield
    if connect._current is not None:
        connect._current.close()


@pytest.mark.parametrize("name", module_names())
def test_examples_in_docstrings(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    if module is not connect:  # examples elsewhere leave out the line that ht.init prints
        monkeypatch.setattr(connect, "log", types.SimpleNamespace(say=lambda *_, **__: None, warn=lambda *_, **__: None))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0
    # What doctest passes over (a property, a function behind a decorator) must not go untested.
    assert result.attempted == len(re.findall(r"^ *>>> ", inspect.getsource(module), re.MULTILINE))
