"""16-bit floats: which way they travel, who adds what, and one rounding."""

from __future__ import annotations

import pytest
import torch

from hvd_trainer.comm.half_floats import NARROW_BYTES, NARROW_SHARE_BYTES, add_rows, is_narrow, share_counts

MANY = 1 << 30


@pytest.mark.parametrize("engine", NARROW_BYTES)
def test_narrow_over_several_nodes_from_a_size_on(engine: str) -> None:
    least = max(NARROW_BYTES[engine], 2 * NARROW_SHARE_BYTES)
    assert is_narrow("auto", engine, 2, 2, least) and not is_narrow("auto", engine, 2, 2, least - 1)
    assert not is_narrow("auto", engine, 1, 2, MANY)
    assert not is_narrow("auto", engine, 2, 1000, 1000 * NARROW_SHARE_BYTES - 1)
    assert is_narrow("auto", engine, 2, 1000, 1000 * NARROW_SHARE_BYTES)


@pytest.mark.parametrize("engine", NARROW_BYTES)
def test_the_way_that_is_asked_for(engine: str) -> None:
    assert not is_narrow("wide", engine, 2, 2, MANY)
    assert is_narrow("narrow", engine, 1, 2, 0)
    assert not is_narrow("narrow", engine, 1, 1, MANY)  # nothing travels


@pytest.mark.parametrize("size", range(1, 9))
def test_shares_cover_everything_once(size: int) -> None:
    for numel in range(40):
        counts = share_counts(numel, size)
        assert len(counts) == size and sum(counts) == numel
        assert all(count == counts[0] or not any(counts[rank + 1 :]) for rank, count in enumerate(counts))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_rounding_and_the_scale_before_it(dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    rows = torch.tensor([[1.0, 40000.0, 3.0], [eps / 2, 40000.0, float("nan")], [eps / 2, 0.0, 1.0]]).to(dtype)
    work, result = torch.empty(3), torch.empty(3, dtype=dtype)
    add_rows(rows, 1.0, work, result)
    assert result[0] == 1 + eps and result[2].isnan()
    assert result[1] == (float("inf") if dtype is torch.float16 else torch.tensor(80000.0).to(dtype))
    add_rows(rows, 0.5, work, rows[0])  # the result may take the place of a row
    assert rows[0, 1] == torch.tensor(40000.0).to(dtype)


def test_rows_are_added_in_their_order() -> None:
    big, tiny = 2.0**14, 2.0**-11
    rows = torch.tensor([[tiny, big], [big, -big], [-big, tiny]], dtype=torch.float16)
    result = torch.empty(2, dtype=torch.float16)
    add_rows(rows, 1.0, torch.empty(2), result)
    assert result.tolist() == [0.0, tiny]  # float32 has lost the tiny one at 16384; in another order it has not


def test_no_rows_at_all() -> None:
    empty = torch.empty(3, 0, dtype=torch.float16)
    add_rows(empty, 2.0, torch.empty(0), empty[0])
