"""Views of flat buffers that lie as the parameters do."""

import pytest
import torch

from hvd_trainer.optim.layout import flattened_like, is_dense, view_like

DENSE = {
    "a number": torch.zeros(()),
    "nothing": torch.zeros(0, 3),
    "rows": torch.zeros(2, 3),
    "transposed": torch.zeros(2, 3).t(),
    "channels last": torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "one channel": torch.zeros(4, 1).t(),
}
HOLES = {
    "every other": torch.zeros(6)[::2],
    "part of rows": torch.zeros(3, 4)[:, :2],
    "one element, shown often": torch.zeros(1).expand(4),
}


@pytest.mark.parametrize(("tensors", "expected"), [(DENSE, True), (HOLES, False)], ids=["dense", "holes"])
def test_is_dense(tensors, expected):
    assert {name: is_dense(tensor) for name, tensor in tensors.items()} == dict.fromkeys(tensors, expected)


@pytest.mark.parametrize("name", ["rows", "transposed", "channels last"])
def test_flattened_values_seen_through_the_view_are_the_values(name):
    param, flat = DENSE[name], torch.zeros(200)
    values = torch.randn(param.shape, generator=torch.Generator().manual_seed(0))
    flat[7 : 7 + param.numel()] = flattened_like(values, param)
    view = view_like(flat, 7, param.numel(), param)
    assert torch.equal(view, values) and view.stride() == param.stride()
    assert not flat[:7].any() and not flat[7 + param.numel() :].any()


def test_a_parameter_with_holes_gets_rows_without():
    view = view_like(torch.arange(10.0), 2, 6, torch.zeros(3, 4)[:, :2])
    assert view.tolist() == [[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]] and view.is_contiguous()


def test_a_complex_parameter_lies_in_pairs():
    view = view_like(torch.arange(6.0), 2, 4, torch.zeros(2, dtype=torch.complex64))
    assert view.tolist() == [2 + 3j, 4 + 5j]


def test_a_view_writes_to_the_buffer():
    flat = torch.zeros(4)
    view_like(flat, 1, 2, torch.zeros(2)).fill_(1)
    assert flat.tolist() == [0, 1, 1, 0]
