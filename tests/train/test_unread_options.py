"""`--lr 0.2` in place of `--set lr=0.2` is refused; what a parser of the script reads is not."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pytest
import torch

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from hvd_trainer.train.config import override
from hvd_trainer.train.unread_options import refuse_unread_options


@dataclass
class Config:
    lr: float = 0.1
    global_batch: int = 64
    fast: bool = False
    name: str = "a"
    layers: tuple = (1, 2)
    limit: Optional[int] = None
    folder: Path = Path("runs")


@pytest.mark.parametrize(
    ("argv", "given", "fix"),
    [
        (["--lr=0.2"], "--lr 0.2 sets nothing: lr stays 0.1", "--set lr=0.2"),
        (["--lr", "0.2"], "--lr 0.2 sets nothing", "--set lr=0.2"),
        (["--lr", "-1e-3"], "--lr -1e-3 sets nothing", "--set lr=-1e-3"),
        (["--global-batch", "128"], "global_batch stays 64", "--set global_batch=128"),
        (["--global_batch=128"], "global_batch stays 64", "--set global_batch=128"),
        (["--fast"], "fast stays False", "--set fast=true"),
        (["--fast", "data"], "fast stays False", "--set fast=true"),
        (["--name", "b c"], "name stays 'a'", "--set 'name=b c'"),
        (["--layers", "3", "4"], "layers stays (1, 2)", "--set 'layers=[3, 4]'"),
        (["--layers=[3]"], "layers stays (1, 2)", "--set 'layers=[3]'"),
        (["--limit", "3"], "limit stays None", "--set limit=3"),
        (["--folder", "x"], "folder stays", "--set folder=x"),
        (["--lr=0.2", "--name=b"], "--lr 0.2 --name b sets nothing: lr stays 0.1, name stays 'a'", "--set lr=0.2 --set name=b"),
        (["--lr=0.2", "--set", "name=b"], "--lr 0.2 sets nothing", "--set lr=0.2"),
    ],
    ids=repr,
)
def test_an_option_that_nobody_read(argv, given, fix):
    with pytest.raises(ConfigError) as error:
        override(Config(), argv)
    assert given in error.value.given and "--config file.yaml" in error.value.allowed
    line, advice = error.value.fix.split("\n")
    assert line == fix and "parse_known_args" in advice
    changed = override(Config(), shlex.split(line))  # the line that is advised works
    assert changed != Config()


def test_what_the_scripts_own_parser_read_is_left_alone():
    """The config holds it: `Config(**vars(args))` and `vars(args)`, the two ways in which scripts do this."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--parts", type=lambda text: tuple(text.split(",")), default=())
    parser.add_argument("--tag", action="append", default=[])
    parser.add_argument("--folder", type=Path, default=Path("runs"))
    parser.add_argument("--model", type=lambda name: getattr(torch.nn, name), default=torch.nn.ReLU)
    parser.add_argument("--verbose", action="count", default=0)
    argv = ["--lr", "1e-3", "--global-batch=32", "--fast", "--layers", "4", "5", "6", "--parts", "a,b", "--tag", "x", "--tag=y"]
    argv += ["--folder", "a/", "--model", "Tanh", "--verbose", "--verbose"]
    args, rest = parser.parse_known_args([*argv, "--set", "name=b", "--lr", "0.5"])
    config = {**vars(args), "name": "a"}
    assert (args.lr, args.layers, args.tag, args.verbose) == (0.5, [4, 5, 6], ["x", "y"], 2)
    assert override(config, [*argv, "--lr", "0.5"]) is config
    own = Config(args.lr, args.global_batch, args.fast, layers=args.layers, folder=args.folder)
    assert override(own, [*argv, "--lr=0.5", "--set", "name=b"]).name == "b"
    with pytest.raises(ConfigError, match="--lr 0.5 sets nothing"):
        override({**config, "lr": args.lr / 8}, [*argv, "--lr", "0.5"])
    assert override({**config, "lr": args.lr / 8}, rest)["name"] == "b"  # the advice of the message


def test_options_that_are_no_field_and_values_of_others_are_the_scripts():
    fields = {"lr": 0.1, "set": 1, 3: "x"}
    for argv in (["--json", "out.json"], ["--lrr=2"], ["-lr", "2"], ["lr"], ["--set", "lr=0.1"], ["--lr"], ["--resume", "lr"]):
        refuse_unread_options(argv, fields)


def test_run_refuses_before_it_starts():
    called = []
    with pytest.raises(ConfigError, match="--set lr=0.2"):
        ht.run(lambda comm, config: called.append(1), {"lr": 0.1}, engine="single", argv=["--lr=0.2"])
    assert not called
    assert ht.run(lambda comm: 1, engine="single", argv=["--lr=0.2"]) == 1  # without a config nothing is known


@pytest.mark.parametrize(
    ("argv", "value"),
    [(["--x", "no"], False), (["--x", "0"], False), (["--x", "yes"], True), (["--x", "none"], None), (["--x", "4G"], 4 << 30), (["--x", "nan"], float("nan")),
     (["--x", "~/a"], "elsewhere/a"), (["--", "--x", "7"], 1)],
    ids=repr,
)  # fmt: skip
def test_what_a_parser_made_of_a_word_is_no_forgotten_set(argv, value):
    refuse_unread_options(argv, {"x": value})
