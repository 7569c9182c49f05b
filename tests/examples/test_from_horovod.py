"""from_horovod.py: what a Horovod user changes, in at most ten lines of "before", and it trains."""

import pytest

from tests.examples.start import run_example
from tests.harness import ROOT


def test_before_is_at_most_ten_lines():
    lines = (ROOT / "examples/from_horovod.py").read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert comments[0].startswith("# before: hvd.init()")
    assert len(comments) <= 10


def test_trains_under_horovodrun(tmp_path):
    _, result = run_example("from_horovod.py", "horovodrun-gloo", 2, tmp_path / "result.json")
    assert result["test_accuracy"] >= 0.9  # the last 360 digits are by other hands than the first
    assert result["lr_peak"] == pytest.approx(0.1)
