"""The page: complete, readable for a parser, and alone."""

import re
from html.parser import HTMLParser

import pytest

from hvd_trainer.errors import MissingPartError
from hvd_trainer.report.page import html
from tests.report.made_up import report

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Tags in order, whether they are closed in turn, their texts, and every address."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.texts, self.ids, self.labels, self.wrong = [], [], [], {}, [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.note(attributes)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.note(attributes)

    def note(self, attributes):
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "srcset", "data"):
                self.addresses.append(value)
            if name == "id":
                self.ids.append(value)
            if name == "aria-label":
                self.labels.append(value)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data.strip())


@pytest.fixture(scope="module")
def text():
    return html(report())


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_is_well_formed_and_needs_nothing_from_elsewhere(text, page):
    assert not page.wrong and not page.open
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    inside = {address[1:] for address in page.addresses if address.startswith("#")}
    others = [address for address in page.addresses if not address.startswith("#")]
    assert inside and inside <= set(page.ids) and len(page.ids) == len(set(page.ids))
    assert all(address.startswith("data:image/png;base64,") for address in others)  # the colour bar
    assert not re.search(r"https?:|@import|url\((?!#)", text)


def test_has_what_a_reader_looks_for(text, page):
    assert page.texts["h1"][0].startswith("On 2 ranks, batch ")
    assert page.tags.index("h1") < page.tags.index("dl") < page.tags.index("pre") < page.tags.index("svg")
    assert "lr: 0.5" in page.texts["pre"][0] and page.tags.count("dt") == 6
    assert len(page.labels) == 6 and page.tags.count("svg") == 6
    cells = page.texts["td"]
    assert {"linear rule", "N x what fits in memory", "measured", "predicted", "extrapolated"} <= set(cells)
    assert cells.count("search") == 45  # every trial is in the table
    words = " ".join(page.texts["text"])
    for label in ("global batch (samples a step)", "steps to the target", "samples to the target", "time to the target (s)", "peak learning rate",
                  "training loss", "noise scale (samples)", "time of a step (ms)", "diverged"):  # fmt: skip
        assert label in words, label


def test_takes_its_colours_from_the_page(text):
    body = text[text.index("<body>") :]
    used = set(re.findall(r"var\(--(\w+)\)", body))
    light, dark = (set(re.findall(r"--(\w+):", root)) for root in re.findall(r":root \{([^}]*)\}", text))
    assert {"text", "grid", "blue", "orange"} <= used <= light == dark
    assert "prefers-color-scheme: dark" in text and "#0f6cbd" not in body and "#1e2330" not in body


def test_a_report_without_phases_says_what_is_missing():
    page = Page(html(report(with_phases=False)))
    missing = " ".join(page.texts["p"])
    assert "No range test was run." in missing and "The gradient noise scale was not measured" in missing
    assert page.tags.count("svg") == 4 and not page.wrong


def test_an_empty_report_is_a_page_too():
    page = Page(html({"script": "<b>&", "target": "loss<=1", "trials": [], "phases": {"lr_range": {"note": "not measured"}}}))
    assert any(said.startswith("No range test was run: not measured. ") for said in page.texts["p"])
    assert page.texts["h1"] == ["No trial was run."] and "svg" not in page.tags and "b" not in page.tags and not page.wrong


@pytest.mark.parametrize(("module", "command"), [("matplotlib", "pip install matplotlib"), ("jinja2", "pip install jinja2")])
def test_what_is_not_installed_is_named(monkeypatch, module, command):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingPartError, match=command):
        html(report())
