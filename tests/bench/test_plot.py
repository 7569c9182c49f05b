"""The plots are PNG files, and say what to do without matplotlib."""

import sys

import pytest

from hvd_trainer.bench import plot, scaling, summary
from hvd_trainer.bench.stats import Spread
from hvd_trainer.errors import MissingPartError

ONE = Spread(1.0, 0.9, 1.2)
PNG = b"\x89PNG"


def test_each_plot_is_a_png(tmp_path):
    rows = [summary.Row(name, ONE, ONE, None, 0.0, None, None) for name in ("compute", "ours-mpi", "hvd-mpi")]
    points = [scaling.Point("ours-mpi", way, ranks, ONE, ONE, ONE) for way in ("weak", "strong") for ranks in (1, 2)]
    plot.steps(tmp_path / "a.png", {"mlp": rows, "cnn": rows[:1]}, "title")
    plot.transfers(tmp_path / "b.png", {"mpi": {1024: 0.002, 4096: 0.004}, "copy": {1024: 0.001}}, "title")
    plot.scaling(tmp_path / "c.png", points, "title")
    assert all((tmp_path / name).read_bytes()[:4] == PNG for name in ("a.png", "b.png", "c.png"))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPartError, match="pip install matplotlib"):
        plot.pyplot()
