"""What is saved of ours comes back, from older and newer checkpoints, too."""

import pytest

from hvd_trainer.optim.saved_state import STATE_KEY, SavedState, split

THEIRS = {"state": {0: {"step": 1}}, "param_groups": []}
SAVED = SavedState(3, 2.0, 64.0, "32", 2, "shared", [2], {"gain": 1.5})


def test_there_and_back():
    together = SAVED.beside(THEIRS)
    assert together[STATE_KEY]["lr_scale"] == 2.0  # plain values: torch.load(weights_only=True) reads them
    assert split(together) == (THEIRS, SAVED)
    assert STATE_KEY not in THEIRS


def test_of_a_plain_optimizer():
    assert split(THEIRS) == (THEIRS, None)


@pytest.mark.parametrize("missing", ["reduce_through", "node_sizes", "rule"])
def test_an_older_checkpoint_lacks_what_came_later(missing):
    together = SAVED.beside(THEIRS)
    del together[STATE_KEY][missing]
    _, saved = split(together)
    assert getattr(saved, missing) is None and saved.steps_done == 3


def test_a_newer_checkpoint_may_hold_more():
    together = SAVED.beside(THEIRS)
    together[STATE_KEY]["added_later"] = 1
    assert split(together) == (THEIRS, SAVED)
