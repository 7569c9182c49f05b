"""The archive is fetched once, checked always, and a wrong one is not used."""

import hashlib
import io
import tarfile

import pytest

from hvd_trainer.errors import ConfigError, MissingPartError
from hvd_trainer.launcher.horovod_build import source
from hvd_trainer.launcher.horovod_build.settings import Settings


def archive_in(cache):
    file = cache / "source" / "horovod-0.28.1.tar.gz"
    file.parent.mkdir(parents=True)
    with tarfile.open(file, "w:gz") as tar:
        member = tarfile.TarInfo("horovod-0.28.1/setup.py")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"pass"))
    return file


def test_a_kept_archive_with_the_right_checksum_is_unpacked(tmp_path, monkeypatch):
    file = archive_in(tmp_path)
    monkeypatch.setattr(source, "HOROVOD_SDIST_SHA256", hashlib.sha256(file.read_bytes()).hexdigest())
    (tmp_path / "into").mkdir()
    root = source.unpacked(Settings(cache=tmp_path, path=""), tmp_path / "into")
    assert (root / "setup.py").read_text() == "pass"


def test_another_archive_is_thrown_away(tmp_path):
    file = archive_in(tmp_path)
    with pytest.raises(ConfigError, match="not the released archive"):
        source.unpacked(Settings(cache=tmp_path, path=""), tmp_path)
    assert not file.exists()


def test_no_index_is_a_sentence(tmp_path):
    env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null", "HOME": str(tmp_path)}
    with pytest.raises(MissingPartError) as caught:
        source.unpacked(Settings(cache=tmp_path / "c", path="", base_env=env), tmp_path)
    assert "could not be fetched" in str(caught.value) and "WHEELS=" in str(caught.value)
