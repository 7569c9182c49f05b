"""Files that are there whole or not at all."""

import pytest

from hvd_trainer.files import write_whole


def test_what_was_there_stays_where_writing_fails(tmp_path):
    path = tmp_path / "report.json"
    write_whole(path, "first é")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "x" * 100_000 + "\ud800")
    assert path.read_text(encoding="utf-8") == "first é" and list(tmp_path.iterdir()) == [path]
