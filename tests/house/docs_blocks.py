"""The python blocks of a Markdown page, for the tests that run them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, its first line in the page, and whether it is only a fragment."""

    language: str
    text: str
    line: int
    is_fragment: bool


def pages():
    """All Markdown pages of the repository that people read."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("launch/*.md"), *ROOT.glob("examples/*.md")]
    return sorted(found)


def blocks(page):
    """The fenced blocks of a page; one below the comment `<!-- fragment -->` cannot run by itself."""
    text = page.read_text()
    return [
        Block(
            match[1],
            match[2],
            text[: match.start()].count("\n") + 2,
            text[: match.start()].rstrip().endswith("<!-- fragment -->"),
        )
        for match in _FENCE.finditer(text)
    ]
