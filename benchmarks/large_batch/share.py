"""Cells divided among the ranks through files: each takes the next one that nobody has, and what was finished is kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.large_batch.cells import Cell, Row, cost_of

POLL_S = 0.05  # ranks that wait sleep: an MPI barrier would keep a core busy that another rank computes on


class Results:
    """Finished cells, one file of JSON lines for each rank; all of them are read.

    Args:
        folder: of this part; a second start goes on there.
        rank: of this process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._read: dict[Path, int] = {}
        self.by_key: dict[str, dict[str, Any]] = {}

    def refresh(self) -> dict[str, dict[str, Any]]:
        """Read what has come since; {key: result}."""
        for path in sorted(self._folder.glob("cells-*.jsonl")):
            with open(path) as file:
                file.seek(self._read.get(path, 0))
                for line in iter(file.readline, ""):
                    if not line.endswith("\n"):
                        break  # is being written, or was when the process ended
                    entry = json.loads(line)
                    self.by_key[entry["key"]] = entry["result"]
                    self._read[path] = file.tell()
        return self.by_key

    def add(self, cell: Cell, result: dict[str, Any]) -> None:
        """Write a line, whole."""
        with open(self._folder / f"cells-{self._rank}-{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps({"key": cell.key, "result": result}) + "\n")

    def claim(self, cell: Cell) -> bool:
        """Take a cell; False: another rank has it."""
        path = self._folder / "claims" / cell.key.replace("/", "_")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def run_shared(
    rows: Sequence[Row], cells: Sequence[Cell], results: Results, train: Callable[[Cell], dict[str, Any]], say: Callable[[str], None]
) -> None:
    """Run all cells, this rank those that it can take, until none is missing.

    Args:
        rows: grow while they are run.
        cells: to be run as they are.
        results: shared with the other ranks.
        train: runs one.
        say: progress.
    """
    begin_s, began_with = time.perf_counter(), len(results.refresh())
    while True:
        done = results.refresh()
        wanted = [cell for row in rows for cell in row.wanted(done)] + list(cells)
        missing = sorted((cell for cell in wanted if cell.key not in done), key=cost_of, reverse=True)
        if not missing:
            return
        mine = next((cell for cell in missing if results.claim(cell)), None)
        if mine is None:
            time.sleep(POLL_S)
            continue
        found = train(mine)
        results.add(mine, found)
        paid = sum(cost_of(cell) for cell in wanted if cell.key in done or cell is mine)
        left = sum(cost_of(cell) for cell in missing if cell is not mine)
        elapsed_s = time.perf_counter() - begin_s
        # Long ones come first, and few use their whole cap, so this is an upper estimate for most of the time.
        left_text = f"about {left / paid * elapsed_s:.0f} s left" if not began_with else f"{len(missing) - 1} left"
        say(f"{len(wanted) - len(missing) + 1}/{len(wanted)}  {text(mine, found)}  {left_text}")


def text(cell: Cell, found: dict[str, Any]) -> str:
    """A finished cell in half a line."""
    return f"{cell.optimizer} batch {cell.batch} rate {cell.lr:g} seed {cell.seed}: {found['outcome']}, {found['steps']} steps in {found['wall_s']:.1f} s"


def meet(folder: Path, name: str, rank: int, num_ranks: int) -> None:
    """Wait for all ranks without keeping a core busy."""
    place = folder / "claims"
    (place / f"{name}-{rank}").touch()
    while not all((place / f"{name}-{other}").exists() for other in range(num_ranks)):
        time.sleep(POLL_S)
