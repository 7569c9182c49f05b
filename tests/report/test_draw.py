"""Ticks and the way of a figure into the page."""

import xml.etree.ElementTree as ET

from hvd_trainer.report.draw import RED, TEXT, plain, style, svg, ticks
from tests.properties import given, st


@given(st.floats(1e-6, 1e6), st.floats(1.5, 1e9))
def test_ticks_are_few_and_within(low, factor):
    for base in (2, 10):
        found = ticks(low, low * factor, base)
        assert 1 <= len(found) <= 8 and found == sorted(found)
        assert all(low * 0.99 <= value <= low * factor * 1.01 for value in found)


def test_a_narrow_axis_has_its_ends():
    assert ticks(17, 30, base=2) == [17, 30] and ticks(1.11, 1.19) == [1.11, 1.19]
    assert [plain(value) for value in (0.125, 999, 1000, 12_345_678)] == ["0.125", "999", "1,000", "12.3M"]


def test_a_figure_in_the_page():
    with style() as plt:
        before = plt.get_fignums()
        figure, axis = plt.subplots()
        axis.plot([1, 2], [1, 2], color=RED, label="a < b")
        axis.legend()
        text = svg(figure, "name", 'says "this"')
        assert plt.get_fignums() == before
    root = ET.fromstring(text.replace("xlink:href", "href"))
    assert root.tag == "svg" and root.attrib["aria-label"] == 'says "this"' and "height" not in root.attrib
    assert all(element.attrib["id"].startswith("name-") for element in root.iter() if "id" in element.attrib)
    assert "var(--red)" in text and "var(--text)" in text and RED not in text and TEXT not in text and "xmlns" not in text
    assert any(element.text == "a < b" for element in root.iter("text"))
