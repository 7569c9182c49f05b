"""Which tests stay in one process when several run side by side (`pytest -n 2`, as in `make test`), and which begin first."""

from __future__ import annotations

import sys
from typing import Any

import pytest

# Their files share starts of ranks or a cluster, which every process would make anew.
FOLDERS_THAT_SHARE = ("cluster", "examples", "golden")
# What takes longest, begun first: of two processes the one that ends early has nothing left to do.
LONGEST = ("golden", "cluster", "examples", "comm/test_faults.py", "comm/test_contract.py")


def group(nodeid: str) -> str:
    """The file, or the folder where files share something."""
    file = nodeid.split("::")[0].removeprefix("tests/")
    folder = file.split("/")[0]
    return folder if folder in FOLDERS_THAT_SHARE else file


def place(name: str) -> int:
    """Where a group stands in line."""
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: place(group(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whole groups in the order above. `--dist loadgroup` would do, but pytest-xdist 3.8 cannot name groups to pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_collection_finish() -> None:
    """One thread a process: a second one is waited for longer than a small layer takes, most of all beside other tests."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
