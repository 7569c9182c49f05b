"""The first screen of the README works as printed, on two ranks, and prints what the README says it prints."""

import re

from tests.examples.as_program import run_path
from tests.harness import run_ranks
from tests.house.docs_blocks import ROOT, blocks

README = ROOT / "README.md"


def test_first_screen_has_what_it_should():
    text = README.read_text()
    screen = text.split("\n## ")[0]
    for part in ("make train", "make test", "```python", "docs/figures/loss_by_ranks.png"):
        assert part in screen
    script = next(block.text for block in blocks(README) if block.language == "python")
    assert len([line for line in script.splitlines() if line.strip()]) <= 30
    assert (ROOT / "docs/figures/loss_by_ranks.png").stat().st_size < 100_000
    assert script.count("ht.Progress()") == script.count("torch.float32") == 1  # by which docs/figures/loss_by_ranks.py runs this very script


def test_script_runs_on_two_ranks_prints_the_plan_and_resumes(tmp_path, capsys):
    script = next(block.text for block in blocks(README) if block.language == "python")
    file = tmp_path / "train.py"
    file.write_text(script.replace('"runs/a"', repr(str(tmp_path / "runs"))))
    first = run_ranks("mpirun", 2, [file], timeout_s=120).ok()
    printed = next(block.text for block in blocks(README) if block.language == "text")
    # The number of threads depends on the machine.
    for line in re.sub(r", \d+ CPU thread.*", "", printed).splitlines():
        assert line in first.stdout, f"README shows {line!r}\n{first}"
    accuracy = [float(word) for word in re.findall(r"accuracy ([\d.]+)", first.stdout)]
    assert accuracy[-1] >= 0.9
    run_path(file)  # "goes on from the newest checkpoint, on any number of ranks"; here one, in this process
    assert "at step 460" in capsys.readouterr().out
