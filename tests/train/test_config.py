"""Fields of a config from the command line."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Optional

import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.train.config import override


@dataclass(frozen=True)
class Config:
    lr: float = 0.1
    epochs: int = 3
    name: str = "a"
    fast: bool = False
    limit: Optional[int] = None
    layers: tuple = (1, 2)


def test_types():
    argv = ["--set", "lr=1e-3", "--set=epochs=5", "--set", "name=b", "--set", "fast=true", "--set", "limit=7", "--set", "layers=[3]"]
    assert override(Config(), argv) == Config(0.001, 5, "b", True, 7, (3,))
    assert override(Config(), ["--set", "lr=2"]).lr == 2.0
    assert type(override(Config(), ["--set", "lr=2"]).lr) is float
    assert override(Config(limit=3), ["--set", "limit=null"]).limit is None
    assert override(Config(), ["--set", "name=a=b"]).name == "a=b"


@dataclass
class Texts:
    tag: str = "a"
    maybe: Optional[str] = None
    folder: Path = Path("runs")
    maybe_folder: Optional[Path] = None
    sizes: tuple[int, ...] = (1,)


def test_text_is_taken_as_it_is():
    argv = ["--set", "tag=007", "--set", "maybe=no", "--set", "folder=1e3", "--set=maybe_folder=a: b", "--set", "sizes=[2, 3]"]
    assert override(Texts(), argv) == Texts("007", "no", Path("1e3"), Path("a: b"), (2, 3))
    assert override(Texts(maybe="x"), ["--set", "maybe=null"]).maybe is None
    assert override(Texts(), ["--set", "tag=null"]).tag == "null"
    assert override({"tag": "a", "folder": Path("x")}, argv[:2] + ["--set", "folder=007"]) == {"tag": "007", "folder": Path("007")}


def test_text_in_a_file_is_yaml(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("tag: '007'\nfolder: a/b\nsizes: [4]\n")
    assert override(Texts(), ["--config", str(file)]) == Texts("007", folder=Path("a/b"), sizes=(4,))
    file.write_text("tag: 007\n")
    with pytest.raises(ConfigError, match="tag=7 is an int"):
        override(Texts(), ["--config", str(file)])


class Attributes(dict):
    __getattr__ = dict.__getitem__


def test_a_config_keeps_its_class_and_is_itself_where_nothing_changes():
    for config in (Config(), {"lr": 0.1}, Attributes(lr=0.1), MappingProxyType({"lr": 0.1})):
        assert override(config, ["--other", "x"]) is config
    config = Attributes(lr=0.1)
    assert override(config, ["--set", "lr=0.2"]).lr == 0.2
    assert config.lr == 0.1
    found = override(defaultdict(int, lr=0.1), ["--set", "lr=0.2"])
    assert found["lr"] == 0.2 and found["never"] == 0
    assert override(MappingProxyType({"lr": 0.1}), ["--set", "lr=0.2"]) == {"lr": 0.2}


def test_numbers_in_a_mapping():
    """No type was declared there: the 1 in {"lr": 1} shows a number."""
    for text, value in (("0.5", 0.5), ("1e-3", 0.001), ("2", 2)):
        found = override({"lr": 1}, ["--set", f"lr={text}"])["lr"]
        assert (found, type(found)) == (value, type(value))
    for text in ("true", "fast"):
        with pytest.raises(ConfigError, match="lr="):
            override({"lr": 1}, ["--set", f"lr={text}"])


def test_mappings_and_the_scripts_own_arguments():
    config = {"lr": 0.1, "what": None}
    found = override(config, ["train.py", "--rate", "7", "--set", "lr=0.2", "--set", "what=[1, 2]", "--json", "x", "--settings", "y"])
    assert found == {"lr": 0.2, "what": [1, 2]}
    assert config == {"lr": 0.1, "what": None}


def test_a_second_assignment_needs_its_own_set():
    """`--set lr=0.2 epochs=5` would train 3 epochs without a word."""
    with pytest.raises(ConfigError, match="--set epochs=5"):
        override(Config(), ["--set", "lr=0.2", "epochs=5"])
    own = ["--mine", "epochs=5", "--set", "lr=0.2", "other=5", "--x=1"]  # the script's own are left alone
    assert override(Config(), own) == Config(lr=0.2)


def test_files_and_order(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("lr: 0.5\nepochs: 9\n")
    assert override(Config(), ["--config", str(file), "--set", "lr=0.7"]) == Config(0.7, 9)
    assert override(Config(), ["--set", "lr=0.7", f"--config={file}"]) == Config(0.5, 9)
    file.write_text("lr: 1e-4\n")
    assert override(Config(), ["--config", str(file)]).lr == 1e-4


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--set", "lrr=1"], "no field 'lrr'(.|\n)*did you mean lr?"),
        (["--set", "zzz=1"], "correct the name"),
        (["--set", "lr"], "--set name=value"),
        (["--set"], "--set name=value"),
        (["--set", "lr=fast"], "lr='fast' is a str"),
        (["--set", "lr="], "lr=None"),
        (["--set", "lr=true"], "lr=True is a bool"),
        (["--set", "epochs=1.5"], "epochs=1.5 is a float"),
        (["--set", "epochs=true"], "epochs=True is a bool"),
        (["--set", "fast=1"], "fast=1 is an int"),
        (["--set", "layers=3"], "layers=3 is an int"),
        (["--set", "limit=many"], "limit='many' is a str"),
        (["--set", "layers=[1"], "--set layers="),
        (["--config", "/no/such/file"], "--config /no/such/file: No such file or directory, looked for from /"),
        (["--config", "."], "--config .: Is a directory"),
        (["--config"], "--config"),
    ],
    ids=repr,
)
def test_overrides_that_cannot_be(argv, words):
    with pytest.raises(ConfigError, match=words):
        override(Config(), argv)


@pytest.mark.parametrize("content", ["- 1\n", "3\n", "a: [\n", "", b"\xff\xfe\x00"])
def test_files_that_cannot_be(content, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match="c.yaml"):
        override(Config(), ["--config", str(file)])


def test_configs_that_cannot_be():
    for bad in (3, Config, None):
        with pytest.raises(ConfigError, match="a dataclass object or a mapping"):
            override(bad, [])
