"""A crash at any moment leaves the older checkpoints loadable, and what is damaged says so."""

import json
import os
import time

import numpy as np
import pytest
import torch

from hvd_trainer.checkpoint.store import Store, load
from hvd_trainer.errors import CheckpointError


def state(value):
    return {"model": {"w": torch.full((1000,), float(value))}, "step": value, "names": ["a", ("b", None)]}


def saved(folder, *steps, keep=3):
    store = Store(folder, keep)
    for step in steps:
        store.save(step, state(step), {"model": ["w [1000] float32"]})
    return store


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_round_trip(tmp_path):
    folder = tmp_path / "not" / "there yet"
    path = Store(folder).save(46, state(46), {"torch": "2"})
    assert path == folder / "step-0000000046"
    for source in (path, folder, str(folder)):
        found, manifest = load(source)
        assert torch.equal(found["model"]["w"], state(46)["model"]["w"])
        assert (found["step"], found["names"]) == (46, ["a", ("b", None)])
        assert manifest["torch"] == "2" and manifest["step"] == 46


def test_keep(tmp_path):
    store = saved(tmp_path, 1, 2, 3, 10, 20, keep=2)
    assert names(tmp_path) == ["step-0000000010", "step-0000000020"]
    assert store.latest().name == "step-0000000020"
    assert [path.name for path in store.complete()] == names(tmp_path)


def test_empty_folders(tmp_path):
    assert Store(tmp_path / "none").latest() is None
    assert Store(tmp_path).complete() == []
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(CheckpointError, match="no checkpoint in"):
            load(folder)


def test_set_aside(tmp_path):
    """A run that starts anew in the folder of a longer one, or goes back: its checkpoints must neither be removed as the
    oldest nor lose to the other run's when it is resumed."""
    store = saved(tmp_path, 50, 60, 70)
    assert store.set_aside(55) == tmp_path / "previous-1"
    assert store.latest().name == "step-0000000050"
    assert names(tmp_path / "previous-1") == ["step-0000000060", "step-0000000070"]
    assert load(tmp_path / "previous-1")[0]["step"] == 70
    assert store.set_aside(55) is None
    assert store.set_aside(0) == tmp_path / "previous-2"
    assert names(tmp_path / "previous-2") == ["step-0000000050"]
    saved(tmp_path, 4)
    assert store.latest().name == "step-0000000004"


def test_times_of_files_do_not_matter(tmp_path):
    store = saved(tmp_path, 1, 2)
    for name in ("", "manifest.json", "state.pt"):
        os.utime(tmp_path / "step-0000000001" / name, (time.time() + 999,) * 2)
    assert store.latest().name == "step-0000000002"


# -- crashes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("disk"), OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()], ids=repr)
@pytest.mark.parametrize("place", ["torch.save", "json.dump", "os.fsync", "os.rename"])
def test_killed_in_save(tmp_path, monkeypatch, error, place):
    store = saved(tmp_path, 1)
    module, name = place.split(".")
    target = {"torch": torch, "json": json, "os": os}[module]
    real = getattr(target, name)

    def fail(*args, **kwargs):
        if place == "torch.save":
            args[1].write(b"half of it")
        raise error

    monkeypatch.setattr(target, name, fail)
    expected = CheckpointError if isinstance(error, (RuntimeError, OSError)) else type(error)
    with pytest.raises(expected):
        store.save(2, state(2), {})
    monkeypatch.setattr(target, name, real)
    assert load(tmp_path)[0]["step"] == 1
    store.save(3, state(3), {})
    assert names(tmp_path) == ["step-0000000001", "step-0000000003"]  # nothing half written is left
    assert load(tmp_path)[0]["step"] == 3


def test_a_full_disk_says_so(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(CheckpointError, match=r"step 2 cannot be written to .*No space left on device(.|\n)*df -h"):
        Store(tmp_path).save(2, state(2), {})


def test_killed_while_the_same_step_is_saved_again(tmp_path, monkeypatch):
    """The only checkpoint there is: it must not be removed before the new one is in place."""
    store = saved(tmp_path, 1)
    real = os.rename
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        store.save(1, state(1), {})
    monkeypatch.setattr(os, "rename", real)
    assert load(tmp_path)[0]["step"] == 1
    store.save(1, {"step": 100}, {})
    assert load(tmp_path)[0]["step"] == 100
    assert names(tmp_path) == ["step-0000000001"]


def test_left_overs_are_no_checkpoints_and_are_swept(tmp_path):
    store = saved(tmp_path, 1)
    left = tmp_path / ".step-0000000009.123.tmp"
    left.mkdir()
    (left / "state.pt").write_bytes(b"half")
    (tmp_path / "step-0000000099").mkdir()  # killed in rmtree
    (tmp_path / "step-0000000099" / "state.pt").write_bytes(b"half")
    assert load(tmp_path)[0]["step"] == 1
    store.save(2, state(2), {})
    assert not left.exists()
    assert load(tmp_path)[0]["step"] == 2


@pytest.mark.parametrize("act", [lambda store: store.save(1, state(1), {}), lambda store: store.prepare()], ids=["save", "prepare"])
@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_file_in_the_way(tmp_path, act, folder):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written to .*file(.|\n)*another folder, or permission"):
        act(Store(tmp_path / folder))


def test_a_folder_that_may_not_even_be_looked_at(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    monkeypatch.setattr("pathlib.Path.is_dir", refuse)
    with pytest.raises(CheckpointError, match=r"Permission denied(.|\n)*another folder, or permission"):
        Store(tmp_path).prepare()


def test_a_folder_that_may_not_be_written_is_found_before_training(tmp_path, monkeypatch):
    """Not by its permissions, which root does not heed."""
    Store(tmp_path / "a" / "b").prepare()
    assert names(tmp_path / "a" / "b") == []
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(122, "Disk quota exceeded")))
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written to .*Disk quota exceeded(.|\n)*make room: df -h"):
        Store(tmp_path / "c").prepare()
    assert names(tmp_path / "c") == []


@pytest.mark.parametrize("bad", [lambda: None, object(), np.float64(1.0), torch.nn.Linear(1, 1)], ids=lambda bad: type(bad).__name__)
def test_what_could_not_be_loaded_again_is_not_saved(tmp_path, bad):
    """Found at the first checkpoint, not when the job has died."""
    store = saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match=f"(?i)step 2 holds something(.|\n)*({type(bad).__name__}|lambda|scalar)"):
        store.save(2, {"callbacks": {"Mine": {"x": bad}}}, {})
    assert names(tmp_path) == ["step-0000000001"]


# -- damage ---------------------------------------------------------------------------------------------------------


def damage_state(path, how):
    data = bytearray((path / "state.pt").read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    elif how == "empty":
        data = b""
    elif how == "zeroed":
        data = bytes(len(data))
    elif how == "one byte":
        data[data.find(np.float32(1.0).tobytes() * 20) + 33] ^= 0x10
    (path / "state.pt").write_bytes(data)


@pytest.mark.parametrize("how", ["cut", "empty", "zeroed", "one byte"])
def test_damaged_state(tmp_path, how):
    saved(tmp_path, 0, 1)
    damage_state(tmp_path / "step-0000000001", how)
    with pytest.raises(CheckpointError, match=r"step-0000000001(.|\n)*remove"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "null"])
def test_damaged_manifest(tmp_path, text):
    saved(tmp_path, 0, 1)
    (tmp_path / "step-0000000001" / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"step-0000000001(.|\n)*remove"):
        load(tmp_path / "step-0000000001")
    saved(tmp_path, 2)  # does not disturb what comes after
    assert load(tmp_path)[0]["step"] == 2


def test_missing_state(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "step-0000000001" / "state.pt").unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path)


def test_another_format(tmp_path):
    saved(tmp_path, 1)
    path = tmp_path / "step-0000000001" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(CheckpointError, match="has format 99"):
        load(tmp_path)
