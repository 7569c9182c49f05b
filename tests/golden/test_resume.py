"""The fourth promise: stopped in mid-epoch and resumed, on another number of ranks too, is as if it had not stopped."""

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from tests.golden.conftest import errors, program, read
from tests.multi.cases import reference, train, worst_difference
from tests.multi.golden import END, RESUMED, STOP


def stop_and_resume(launcher, stopped, resumed, straight, folder):
    """What `resumed` ranks come to from where `stopped` ranks were left; they start in processes of their own."""
    start = straight(launcher, stopped)
    assert not errors(read(start, "stopped")), errors(read(start, "stopped"))
    result = program(launcher, resumed, "resumed", folder, start[1] / "runs").ok()
    assert result.stdout.count(f"at step {STOP}") == len(RESUMED), result
    found = read((result, folder), "resumed")
    assert not errors(found), errors(found)
    return found


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("horovodrun-gloo", marks=pytest.mark.slow)])
def test_stopped_on_3_and_resumed_on_2_equals_straight(launcher, straight, tmp_path):
    found = stop_and_resume(launcher, 3, 2, straight, tmp_path)
    for case in RESUMED:
        params, history = found[case.name]
        assert worst_difference(params, reference(case, END)) <= case.tolerance, case.name
        _, alone = train(SingleCommunicator(), case, END)
        assert [(row["epoch"], row["step"]) for row in history] == [(row["epoch"], row["step"]) for row in alone]
        assert [row["loss"] for row in history] == pytest.approx([row["loss"] for row in alone], rel=case.tolerance)
        assert [row["lr"] for row in history] == pytest.approx([row["lr"] for row in alone], rel=1e-15)


@pytest.mark.slow
def test_resumed_on_the_same_ranks_is_bit_equal(straight, tmp_path):
    """Not only close: the checkpoint holds everything that a step depends on, and writing it changes nothing."""
    found = stop_and_resume("mpirun", 2, 2, straight, tmp_path)
    uninterrupted = read(straight("mpirun", 2), "answer")
    for case in RESUMED:
        for key, value in uninterrupted[case.name][0].items():
            assert torch.equal(found[case.name][0][key], value), (case.name, key)
