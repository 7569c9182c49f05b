"""report.html, and what it says in report.md, made from report.json in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvd_trainer.errors import DataError
from hvd_trainer.files import write_whole
from hvd_trainer.report import page, tables
from hvd_trainer.report.curves import curves
from hvd_trainer.report.facts import Facts
from hvd_trainer.report.say import headline, recommendations

MARK = "<!-- below: hvd-trainer report -->"  # what stands above is the search's own, what is below is made anew each time


def write(folder: Path) -> list[Path]:
    """Make report.html anew, and the part of report.md that says the same.

    Args:
        folder: with the report.json of a search.

    Returns:
        The files that were written.

    Raises:
        DataError: there is no report.json, or it is none.
        MissingPartError: jinja2 or matplotlib is not installed.
    """
    content = read(folder)
    paths = [folder / "report.html", folder / "report.md"]
    write_whole(paths[0], page.html(content))
    above = paths[1].read_text(encoding="utf-8").split(MARK)[0].rstrip() if paths[1].exists() else ""
    write_whole(paths[1], f"{above}\n\n{MARK}\n\n{markdown(content)}".lstrip())
    return paths


def read(folder: Path) -> dict[str, Any]:
    """The report.json of a folder.

    Raises:
        DataError: see `write`.
    """
    path = folder / "report.json"
    fix = "the folder that `hvd-trainer tune --out` named (runs/tune by default)"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} has no report.json", "the folder of a search", fix) from None
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}", "the report.json of a search", fix) from None
    if not isinstance(found, dict) or "trials" not in found:
        raise DataError(f"{path} has no trials", "the report.json of a search", fix)
    return found


def markdown(content: Mapping[str, Any]) -> str:
    """The sentences and the tables of the page, without its plots.

    Args:
        content: a report.json.
    """
    facts = Facts.of(content)
    known = curves(facts)
    lines = ["## What is recommended, and why", "", headline(facts), ""]
    lines += [f"- {said.what} **{said.value}**: {said.why}" for said in recommendations(facts, known)]
    for title, table in (
        ("What other choices would have cost", tables.lost(facts, known)),
        ("Steps against the batch", tables.steps(facts, known)),
        ("Time against ranks", tables.policies(facts, known)),
        ("Finalists", tables.of_phase(facts, "finalists")),
    ):
        if table.rows:
            lines += ["", f"## {title}", "", *tables.markdown(table)]
    return "\n".join(lines) + "\n"
