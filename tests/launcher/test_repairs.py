"""Repairs change exactly the expected text, all or none of them, and refuse a source they do not know."""

import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.launcher.horovod_build.repairs import CPU_ONLY, CUDA_STANDARD, REPAIRS, Repair, apply


@pytest.fixture
def tree(tmp_path):
    """A source tree in which every repair finds its text, between lines that must stay."""
    for repair in (*REPAIRS, CPU_ONLY, CUDA_STANDARD):
        file = tmp_path / repair.file
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text() if file.is_file() else "first line\n"
        file.write_text(before + f"    {repair.expected}\nlast line\n")
    return tmp_path


def test_each_text_becomes_its_replacement_and_the_rest_stays(tree):
    before = {repair.file: (tree / repair.file).read_text() for repair in REPAIRS}
    apply(tree, REPAIRS)
    for repair in REPAIRS:
        after = (tree / repair.file).read_text()
        assert repair.expected not in after or repair.expected in repair.replacement
        assert repair.replacement in after
        assert after.count("\n") == before[repair.file].count("\n")
    assert CPU_ONLY.expected in (tree / CPU_ONLY.file).read_text()


@pytest.mark.parametrize("broken", REPAIRS, ids=lambda repair: repair.name)
def test_a_missing_text_is_refused_by_name_and_nothing_is_written(tree, broken):
    file = tree / broken.file
    file.write_text(file.read_text().replace(broken.expected, "something else"))
    before = {repair.file: (tree / repair.file).read_text() for repair in REPAIRS}
    with pytest.raises(ConfigError) as caught:
        apply(tree, REPAIRS)
    message = str(caught.value)
    assert broken.name in message and broken.file in message and "--no-repairs" in message
    assert before == {repair.file: (tree / repair.file).read_text() for repair in REPAIRS}


def test_a_text_that_is_there_twice_is_refused(tree):
    repair = REPAIRS[0]
    file = tree / repair.file
    file.write_text(file.read_text() + repair.expected)
    with pytest.raises(ConfigError, match="2 times"):
        apply(tree, (repair,))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not there"):
        apply(tmp_path, (Repair("x", "no/such.py", "a", "b", "because"),))


def test_names_are_unique_and_every_repair_says_why():
    names = [repair.name for repair in (*REPAIRS, CPU_ONLY, CUDA_STANDARD)]
    assert len(set(names)) == len(names)
    assert all(len(repair.why) > 40 for repair in REPAIRS)
