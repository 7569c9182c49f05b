"""Sizes, counts and the check of the sums."""

import pytest

from hvd_trainer.bench import transfers
from hvd_trainer.bench.columns import LINES
from hvd_trainer.errors import ConfigError


def test_sizes_go_from_1_kb_to_256_mb():
    found = transfers.sizes()
    assert (found[0], found[-1], len(found)) == (1024, 2**28, 10)
    assert transfers.sizes(1024) == [1024]
    assert all(transfers.size_bytes(transfers.size_text(size)) == size for size in found)


@pytest.mark.parametrize("largest", [0, 1023, 2**33])
def test_impossible_sizes(largest):
    with pytest.raises(ConfigError, match=str(largest)):
        transfers.sizes(largest)


def test_columns():
    assert {column.line for column in transfers.COLUMNS} == set(LINES)
    assert transfers.choose([]) == list(transfers.COLUMNS) and transfers.choose(["copy"])[0].name == "copy"
    with pytest.raises(ConfigError, match="nccl"):
        transfers.choose(["nccl"])


def test_a_copy_has_no_sum():
    assert transfers.wrong_sums({"1 KB": {"copy": [[1.0], [2.0]], "mpi": [[3.0], [3.0]]}}, transfers.COLUMNS, 2) == []
