"""Which columns there are, what the command line makes of them, and which share a launch."""

import pytest

from hvd_trainer.bench import ways
from hvd_trainer.bench.columns import BY_NAME, COLUMNS, FOR_MEMORY, LINES, launches, parse, rotated
from hvd_trainer.errors import ConfigError


def test_every_column_has_a_way_and_a_line():
    assert {column.way for column in COLUMNS} == ways.BY_NAME.keys()
    assert {column.line for column in COLUMNS} == set(LINES)


def test_nothing_with_a_background_thread_shares_a_process():
    together = [launch.name for launch in launches(COLUMNS) if len(launch.columns) > 1]
    assert together == ["compute+ours-mpi+raw-mpi"]


def test_for_memory_each_column_has_a_process_of_its_own():
    assert [launch.name for launch in launches(COLUMNS, together=False)] == [column.name for column in COLUMNS]


def test_ddp_under_our_launcher_is_named_and_not_a_default():
    assert parse("ddp-gloo-mpirun") in FOR_MEMORY and (BY_NAME["ddp-gloo-mpirun"].way, BY_NAME["ddp-gloo-mpirun"].line) == ("ddp", "mpirun")


def test_variants_of_ours_share_the_launch_with_the_bound():
    found = launches([parse("compute"), parse("ours-mpi"), parse("ours-mpi:overlap=false")])
    assert [launch.name for launch in found] == ["compute+ours-mpi+ours-mpi:overlap=false"]


@pytest.mark.parametrize("text", ["nobody", "hvd-mpi:overlap=false", "ours-mpi:overlap", "ours-mpi:"])
def test_what_is_no_column_is_refused(text):
    with pytest.raises(ConfigError, match=text.split(":")[0]):
        parse(text)


def test_every_launch_is_once_the_first_in_as_many_rounds():
    items = ["a", "b", "c"]
    assert [rotated(items, number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert rotated([], 3) == []
