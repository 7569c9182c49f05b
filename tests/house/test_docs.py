"""Documents tell the truth: links lead somewhere, code runs, public names are described in the house form."""

import doctest
import inspect
import re
import sys

import pytest

import hvd_trainer as ht
from hvd_trainer.comm import connect
from tests.house.docs_blocks import ROOT, blocks, pages

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def name_of(page):
    return str(page.relative_to(ROOT))


def with_code():
    """Pages with python blocks, but for the README, whose script test_readme.py starts on two ranks."""
    return [page for page in pages() if page.name != "README.md" and any(b.language == "python" for b in blocks(page))]


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_relative_links_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    targets = [target.split("#")[0] for target in LINK.findall(text)]
    missing = [t for t in targets if t and "://" not in t and not (page.parent / t).exists()]
    assert not missing, f"{name_of(page)} links to {missing}"


@pytest.mark.parametrize("page", with_code(), ids=name_of)
def test_code_runs(page, tmp_path, monkeypatch):
    """The blocks of a page are one program, as read from top to bottom; those with >>> are checked as doctests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    names = {"__name__": "__main__"}
    try:
        for block in blocks(page):
            if block.language != "python" or block.is_fragment:
                continue
            # Line numbers of the page, so that a traceback leads there.
            if block.text.lstrip().startswith(">>>"):
                test = doctest.DocTestParser().get_doctest(block.text, names, name_of(page), str(page), block.line - 1)
                runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
                runner.run(test, clear_globs=False)
                names.update(test.globs)
                assert runner.failures == 0, f"{name_of(page)}:{block.line}: see the captured output"
            else:
                exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
    finally:
        if connect._current is not None:
            connect._current.close()


def described():
    """(name, object) of everything public that takes arguments: what `ht` has, and the functions of `ht.schedules`."""
    for name in ht.__all__:
        value = getattr(ht, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"ht.{name}", value
    for name, value in vars(ht.schedules).items():
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == ht.schedules.__name__:
            yield f"ht.schedules.{name}", value


@pytest.mark.parametrize(("name", "value"), list(described()), ids=lambda x: x if isinstance(x, str) else "")
def test_docstring_has_the_house_form(name, value):
    doc = inspect.getdoc(value)
    assert doc, f"{name} has no docstring"
    first = doc.splitlines()[0]
    assert re.search(r"[.:;]$", first), f"{name}: the first line is one sentence: {first!r}"
    is_protocol = getattr(value, "_is_protocol", False)
    takes = value.__init__ if inspect.isclass(value) else value
    if takes is object.__init__ or is_protocol:
        return
    parameters = [
        p
        for p in inspect.signature(takes).parameters.values()
        if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if "arguments as `" in doc.lower() or len(parameters) == 0:
        return
    listed = re.search(r"^Args:\n(.*?)(^\S|\Z)", doc, re.M | re.S)
    assert listed, f"{name} takes {[p.name for p in parameters]} and has no Args"
    # Several that are described at once stand before one colon.
    names = {name for words in re.findall(r"^ {4}(\w[\w, ]*):", listed[1], re.M) for name in words.split(", ")}
    assert {p.name for p in parameters} <= names, (
        f"{name}: Args leaves out {[p.name for p in parameters if p.name not in names]}"
    )
    assert names <= {p.name for p in parameters}, (
        f"{name}: Args names {sorted(names - {p.name for p in parameters})}, which do not exist"
    )


def test_decisions_are_numbered_once():
    numbers = [page.name[:4] for page in (ROOT / "docs/decisions").glob("*.md")]
    assert len(numbers) == len(set(numbers))
    assert all(re.fullmatch(r"\d{4}", number) for number in numbers)
