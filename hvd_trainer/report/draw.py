"""How figures look, and how one becomes an SVG that lies within the page and takes its colours; matplotlib is imported when needed."""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hvd_trainer.plotting import pyplot

# Drawn in the colours of the light page. In the SVG each becomes a variable of the page's style sheet, which has another value
# where the reader's system is dark. Nothing else may be drawn in these exact colours.
TEXT, FAINT, GRID = "#1e2330", "#8a90a0", "#dfe2ea"
BLUE, ORANGE, GREEN, PURPLE, RED = "#0f6cbd", "#d4700a", "#0e8a6d", "#8a4fb0", "#c23b34"
VARIABLES = {
    TEXT: "text", FAINT: "faint", GRID: "grid", BLUE: "blue", ORANGE: "orange", GREEN: "green", PURPLE: "purple", RED: "red",
}  # fmt: skip
FOR_RANKS = (BLUE, ORANGE, GREEN, PURPLE, RED)


@contextlib.contextmanager
def style() -> Iterator[Any]:
    """pyplot, with settings that end with the block."""
    plt = pyplot()
    settings = {
        "svg.fonttype": "none", "font.size": 10, "axes.edgecolor": FAINT, "axes.labelcolor": TEXT, "text.color": TEXT, "xtick.color": FAINT,
        "ytick.color": FAINT, "xtick.labelcolor": TEXT, "ytick.labelcolor": TEXT, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.8,
        "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "legend.fontsize": 9,
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "lines.linewidth": 1.8, "lines.markersize": 5.5,
        "axes.titlesize": 10.5, "axes.titlelocation": "left", "figure.max_open_warning": 0, "axes.titlepad": 8,
    }  # fmt: skip
    with plt.rc_context(settings):
        yield plt


def svg(figure: Any, name: str, says: str) -> str:
    """A figure as an `<svg>` element, and the figure closed.

    Args:
        figure: drawn under `style`.
        name: makes its ids differ from those of other figures on the page.
        says: what a reader who does not see it is told.
    """
    plt = pyplot()
    out = io.StringIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return inline(out.getvalue(), name, says)


def inline(text: str, name: str, says: str) -> str:
    """The `<svg>` of a file without what only files need (which names other hosts), with the page's colours and font.

    Example:
        >>> inline('<?xml?><svg xmlns="http://a.example/" height="9pt" width="8pt"><path id="p" style="fill: #1e2330"/></svg>', "x", "A & B")
        '<svg role="img" aria-label="A &amp; B" style="max-width:8pt"><path id="x-p" style="fill: var(--text)"/></svg>'
    """
    import html

    body = text[text.index("<svg") :].strip()
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    head, rest = body.split(">", 1)
    width = re.search(r'width="([\d.]+)pt"', head)
    head = re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", head)
    limit = f' style="max-width:{width[1]}pt"' if width else ""
    rest = re.sub(r'\bid="', f'id="{name}-', rest).replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    rest = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font-size: \1", rest)
    for colour, variable in VARIABLES.items():
        rest = rest.replace(colour, f"var(--{variable})")
    return f'{head} role="img" aria-label="{html.escape(says)}"{limit}>{rest}'


def plain_log(axis: Any, low: float, high: float, base: int = 10) -> None:
    """A log axis of plain numbers, a few of them: 16 64 256 1,024, or 0.2 0.5 1 2 5.

    Args:
        axis: `axes.xaxis` or `axes.yaxis`, already logarithmic.
        low, high: what it spans.
        base: 2 for batches and ranks.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(ticks(low, high, base)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))


def ticks(low: float, high: float, base: int = 10, most: int = 7) -> list[float]:
    """Round numbers between two, at most so many: powers of two, or 1 2 5 by tens.

    Example:
        >>> ticks(10, 5000, base=2), ticks(0.15, 3)
        ([16, 64, 256, 1024, 4096], [0.2, 0.5, 1.0, 2.0])
    """
    slack = 1.001
    if base == 2:
        powers = range(math.ceil(math.log2(low / slack)), math.floor(math.log2(high * slack)) + 1)
        stride = max(1, -(-len(powers) // most))
        return [2**power for power in powers][::stride] or [low, high]
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        found = [float(f"{digit}e{decade}") for decade in decades for digit in digits]
        found = [value for value in found if low / slack <= value <= high * slack]
        if len(found) <= most:
            return found if len(found) >= 2 else [low, high]
    return found[:: -(-len(found) // most)]


def plain(value: float) -> str:
    """A number as people write it.

    Example:
        >>> [plain(value) for value in (0.05, 1.0, 2.5, 16, 4096, 65536, 2_000_000, 1e-05)]
        ['0.05', '1', '2.5', '16', '4,096', '65,536', '2M', '1e-05']
    """
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def spread(values: Sequence[float], room: float = 1.25) -> tuple[float, float]:
    """Limits of a log axis around values."""
    return min(values) / room, max(values) * room


def legend_below(figure: Any, axes: Sequence[Any], columns: int = 4) -> None:
    """One legend for all axes under them, where it covers nothing; each label once."""
    known: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            known.setdefault(label, handle)
    if known:
        figure.legend(list(known.values()), list(known), loc="upper left", bbox_to_anchor=(0.02, 0.0), ncols=min(columns, len(known)), borderaxespad=0.2)
