"""A loss is a sum and its weight."""

import math
import warnings

import numpy as np
import pytest
import torch

from hvd_trainer.errors import HvdTrainerError, LossError
from hvd_trainer.values import Weighted


def test_sums_and_weights_add():
    parts = [Weighted(10.0, 10), Weighted(6.0, 2), Weighted(8.0, 4), Weighted(8.0, 8)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    assert (total.total, total.weight) == (32.0, 24)
    assert total.mean == pytest.approx(4 / 3)


def test_sum_of_a_list():
    assert sum([Weighted(10.0, 10), Weighted(6.0, 2)]) == Weighted(16.0, 12)
    with pytest.raises(TypeError):
        1 + Weighted(1.0, 1)


def test_the_mean_of_a_live_loss_does_not_warn():
    w = torch.tensor(3.0, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Weighted(w * 2, 4).mean == 1.5


@pytest.mark.parametrize(
    "number",
    [3, 3.0, True, np.float32(3), np.int64(3), np.array(3.0), torch.tensor(3), torch.tensor([[3.0]])],
    ids=repr,
)
def test_any_number_will_do(number):
    assert Weighted(number, 2).mean == float(number) / 2
    assert Weighted(3.0, number).mean == 3.0 / float(number)


def test_nothing_seen_has_no_mean():
    assert math.isnan(Weighted(0.0, 0).mean)
    assert math.isnan(Weighted(torch.tensor(0.0), torch.tensor(0)).mean)


@pytest.mark.parametrize("bad", [torch.ones(2), torch.empty(0), np.ones(3)], ids=repr)
@pytest.mark.parametrize("name", ["total", "weight"])
def test_more_than_one_number(bad, name):
    with pytest.raises(LossError, match=rf"Weighted\({name}=...\) has shape"):
        Weighted(**{"total": 1.0, "weight": 1, name: bad})


@pytest.mark.parametrize("bad", [None, "3", [1.0], 1j], ids=repr)
def test_not_a_number(bad):
    with pytest.raises(LossError, match=f"is a {type(bad).__name__}"):
        Weighted(bad, 1)


def test_the_graph_is_kept():
    w = torch.tensor(2.0, requires_grad=True)
    (Weighted(w * 3, 1) + Weighted(w, 1)).total.backward()
    assert w.grad.item() == 4.0


def test_error_text_has_given_allowed_and_fix():
    assert str(HvdTrainerError("a", "b", "c")) == "a\n  allowed: b\n  fix:     c"
    assert str(HvdTrainerError("a", fix="c")) == "a\n  fix:     c"
    assert str(HvdTrainerError("a")) == "a"
