"""Overriding the fields of a user's config from the command line: `--set lr=0.2`, `--config file.yaml`."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from hvd_trainer.errors import ConfigError
from hvd_trainer.train.unread_options import refuse_unread_options


def override(config: Any, argv: Sequence[str]) -> Any:
    """`config` with what `argv` says: itself where that is nothing, else a copy of the same class; other arguments are the
    script's own and left alone, unless they look like a forgotten `--set` (see `refuse_unread_options`).

    Text fields take `--set name=007` as it stands; Path and tuple fields get a Path and a tuple. A field of a mapping has no
    declared type: its value only shows one, so that a whole number there may become a float (but not text).

    Args:
        config: a dataclass object or a mapping.
        argv: may hold `--set name=value` and `--config file.yaml`, each several times; later ones win.

    Raises:
        ConfigError: an unknown field, a value of another type, a file that cannot be read, `name=value` or `--name value`
            of a field without `--set` before it, or a misspelt `--set`.

    Example:
        >>> override({"lr": 0.1, "epochs": 3}, ["--set", "lr=0.2", "--json", "out.json"])
        {'lr': 0.2, 'epochs': 3}
    """
    values: dict[str, Any] = {}
    known = _fields(config)
    arguments, belongs = iter(argv), False  # whether the argument may be the value of an option of the script's own
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if option not in ("--set", "--config"):
            if difflib.get_close_matches(option, ("--set", "--config"), cutoff=0.9):
                raise ConfigError(f"{option} is no option", "--set name=value, --config file.yaml", "correct the spelling")
            if equals and option in known and not belongs:
                raise ConfigError(f"{argument!r} stands alone", "--set before every name=value", f"--set {argument}")
            belongs = argument.startswith("-") and not equals
            continue
        if not equals:
            value = next(arguments, "")
        values.update(_assignment(value, known) if option == "--set" else _read_file(value))
        belongs = False
    refuse_unread_options(argv, values_of(config))
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(
                f"the config has no field {name!r}", ", ".join(known), f"did you mean {near[0]}?" if near else "correct the name"
            )
        values[name] = _convert(name, value, known[name], declared=not isinstance(config, Mapping))
    if not values:
        return config
    if isinstance(config, Mapping):
        return _with_items(config, values)
    return dataclasses.replace(config, **values)


def describe(config: Any, script: str) -> str:
    """What `--help` says of a script that has no parser of its own.

    Args:
        config: a dataclass object or a mapping.
        script: its name.

    Example:
        >>> print(describe({"lr": 0.1, "epochs": 3}, "train.py"))
        usage: train.py [--set NAME=VALUE]... [--config FILE.yaml]
        <BLANKLINE>
        fields:
          lr = 0.1
          epochs = 3
    """
    lines = [f"  {name} = {value!r}" for name, value in values_of(config).items()]
    return "\n".join([f"usage: {script} [--set NAME=VALUE]... [--config FILE.yaml]", "", "fields:", *lines])


def values_of(config: Any) -> dict[str, Any]:
    """The fields that can be set, with their values."""
    return {name: config[name] if isinstance(config, Mapping) else getattr(config, name) for name in _fields(config)}


def _with_items(config: Mapping, values: dict[str, Any]) -> Mapping:
    """A copy of the same class, so that attributes of an attribute-dict still work; a dict where it takes no items."""
    try:
        result = copy.copy(config)
        for name, value in values.items():
            result[name] = value
    except Exception:  # read-only mappings
        return {**config, **values}
    return result


def _fields(config: Any) -> dict[str, Any]:
    """Name -> expected type; None where nothing is known."""
    if isinstance(config, Mapping):
        return {name: None if value is None else type(value) for name, value in config.items()}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        hints = typing.get_type_hints(type(config))
        return {field.name: hints[field.name] for field in dataclasses.fields(config)}
    raise ConfigError(f"config is a {type(config).__name__}", "a dataclass object or a mapping", "@dataclass class Config: lr: float = 0.1")


def _assignment(text: str, known: dict[str, Any]) -> dict[str, Any]:
    import yaml

    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}", "--set name=value", "e.g. --set lr=0.2")
    wanted, may_be_none = _without_none(known.get(name))
    is_text = isinstance(wanted, type) and issubclass(wanted, (str, PurePath))  # 007, no and 1e3 are text there
    if is_text and not (may_be_none and value in ("", "null", "~")):
        return {name: value}
    try:
        return {name: yaml.safe_load(value)}
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {text}: {error}", "a value as in a YAML file", 'quote it: --set "name=\'...\'"') from error


def _read_file(path: str) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        reason = f"{error.strerror}, looked for from {Path.cwd()}" if isinstance(error, OSError) else str(error)
        raise ConfigError(f"--config {path}: {reason}", "a YAML file with name: value lines", "correct the path or the file") from error
    if not isinstance(content, dict):
        raise ConfigError(f"--config {path} holds a {type(content).__name__}", "name: value lines", "e.g. lr: 0.2")
    return content


def _convert(name: str, value: Any, wanted: Any, declared: bool) -> Any:
    """Whole numbers are fine where a float is wanted, and 1e-3 (which YAML reads as text); nothing else is guessed."""
    wanted, may_be_none = _without_none(wanted)
    if value is None and may_be_none:
        return None
    number = int if isinstance(value, int) else float
    # {"lr": 1} in a mapping was meant as a number; `lr: int` in a dataclass means whole numbers.
    if (wanted is float or (wanted is int and not declared)) and not isinstance(value, bool):
        try:
            return float(value) if wanted is float else number(value)
        except (TypeError, ValueError):
            pass
    if wanted is tuple and isinstance(value, list):
        return tuple(value)
    if isinstance(wanted, type) and issubclass(wanted, PurePath) and isinstance(value, str):
        return wanted(value) if declared else Path(value)
    if wanted in (int, float, str, bool, tuple) and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
        raise ConfigError(f"{name}={value!r} is {_with_article(type(value))}", _with_article(wanted), f"--set {name}=...")
    return value


def _without_none(wanted: Any) -> tuple[Any, bool]:
    """The class behind Optional[...] and list[...], and whether None is allowed, too."""
    options = typing.get_args(wanted)
    may_be_none = type(None) in options and len(options) == 2
    if may_be_none:
        wanted = next(option for option in options if option is not type(None))
    return typing.get_origin(wanted) or wanted, may_be_none


def _with_article(kind: type) -> str:
    return f"{'an' if kind is int else 'a'} {kind.__name__}"
