"""The fourth promise: stopped in mid-epoch and resumed, on another number of ranks too, is as if it had not stopped."""

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from tests.harness import run_ranks
from tests.multi.cases import reference, train, worst_difference
from tests.multi.stop_and_resume import RESUMED

STOP, END = 20, 50  # an epoch has 7 steps: both are in the middle of one


@pytest.mark.parametrize(
    "starts",
    [
        [("mpirun", 3), ("mpirun", 2)],
        pytest.param([("horovodrun-gloo", 3), ("horovodrun-gloo", 2)], marks=pytest.mark.slow),
    ],
    ids=lambda starts: " then ".join(f"{launcher} {n}" for launcher, n in starts),
)
def test_stopped_and_resumed_equals_straight(starts, tmp_path):
    out = tmp_path / "results.pt"
    for (launcher, num_ranks), steps in zip(starts, (STOP, END)):
        run_ranks(launcher, num_ranks, ["-m", "tests.multi.stop_and_resume", tmp_path / "runs", steps, out], timeout_s=100).ok()
    found = torch.load(out)
    for case in RESUMED:
        params, history = found[case.name]
        assert worst_difference(params, reference(case, END)) <= case.tolerance, case.name
        _, straight = train(SingleCommunicator(), case, END)
        assert [(row["epoch"], row["step"]) for row in history] == [(row["epoch"], row["step"]) for row in straight]
        assert [row["loss"] for row in history] == pytest.approx([row["loss"] for row in straight], rel=case.tolerance)
        assert [row["lr"] for row in history] == pytest.approx([row["lr"] for row in straight], rel=1e-15)


@pytest.mark.slow
def test_resumed_on_the_same_ranks_is_bit_equal(tmp_path):
    """Not only close: the checkpoint holds everything that a step depends on."""
    for name, stops in (("stopped", (STOP, END)), ("straight", (END,))):
        for steps in stops:
            out = tmp_path / f"{name}.pt"
            run_ranks("mpirun", 2, ["-m", "tests.multi.stop_and_resume", tmp_path / name, steps, out], timeout_s=100).ok()
    stopped, straight = torch.load(tmp_path / "stopped.pt"), torch.load(tmp_path / "straight.pt")
    for case in RESUMED:
        for key, value in straight[case.name][0].items():
            assert torch.equal(stopped[case.name][0][key], value), (case.name, key)
