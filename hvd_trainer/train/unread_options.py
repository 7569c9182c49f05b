"""`--lr 0.2` where `--set lr=0.2` was meant: nobody would read it, and the run would go on with another value."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from hvd_trainer.errors import ConfigError

NO = ("false", "no", "off", "0")


def refuse_unread_options(argv: Sequence[str], fields: Mapping[str, Any]) -> None:
    """Raise where an option has the name of a field that holds another value.

    A field that holds what the option says was filled by a parser of the script's own, as in `Config(**vars(args))`.
    Options that are no field belong to the script, too.

    Args:
        argv: arguments of the script.
        fields: of the config, with the values that the script gave them.

    Raises:
        ConfigError: with the `--set` that would have been read.

    Example:
        >>> refuse_unread_options(["--lr", "1e-1", "--json", "out.json"], {"lr": 0.1})
        >>> refuse_unread_options(["--batch-size=64"], {"lr": 0.1, "batch_size": 32})
        Traceback (most recent call last):
        hvd_trainer.errors.ConfigError: --batch-size 64 sets nothing: batch_size stays 32
          allowed: --set name=value for lr, batch_size; --config file.yaml
          fix:     --set batch_size=64
                   or, where a parser of the script reads it: args, rest = parser.parse_known_args(); ht.run(main, config, argv=rest)
    """
    names = {name.replace("_", "-"): name for name in fields if isinstance(name, str)}
    given: dict[str, list[str]] = {}  # field -> all words of its options, for a parser that appends
    last: dict[str, list[str]] = {}  # field -> the words of the last one, for a parser that replaces
    shown: dict[str, str] = {}
    for option, words in _options(argv):
        name = names.get(option[2:].replace("_", "-"))
        if name is not None and option not in ("--set", "--config"):
            given[name], last[name], shown[name] = given.get(name, []) + words, words, " ".join([option, *words])
    unread = [name for name in last if not _comes_from(fields[name], last[name]) and not _comes_from(fields[name], given[name])]
    if unread:
        stays = ", ".join(f"{name} stays {fields[name]!r}" for name in unread)
        instead = " ".join(f"--set {shlex.quote(f'{name}={_as_yaml(fields[name], last[name])}')}" for name in unread)
        raise ConfigError(
            f"{' '.join(shown[name] for name in unread)} sets nothing: {stays}",
            f"--set name=value for {', '.join(names.values())}; --config file.yaml",
            f"{instead}\n           or, where a parser of the script reads it: args, rest = parser.parse_known_args(); ht.run(main, config, argv=rest)",
        )


def _options(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Each `--option` with the words that belong to it or follow it.

    Example:
        >>> _options(["a", "--lr", "-1", "--sizes=3", "4", "--sizes", "4", "5", "-v", "b"])
        [('--lr', ['-1']), ('--sizes', ['3']), ('--sizes', ['4', '5'])]
    """
    found: list[tuple[str, list[str]]] = []
    words: list[str] = []
    for argument in argv:
        if argument == "--":  # what follows is no option
            break
        if argument.startswith("--"):
            option, equals, value = argument.partition("=")
            found.append((option, [value] if equals else []))
            words = [] if equals else found[-1][1]
        elif argument.startswith("-") and not _is_number(argument):
            words = []
        else:
            words.append(argument)
    return found


def _comes_from(value: Any, words: list[str]) -> bool:
    """Whether a parser may have made this value of an option's words.

    Example:
        >>> _comes_from(False, ["no"]), _comes_from(4 << 30, ["4G"]), _comes_from(None, ["none"]), _comes_from(0.1, ["0.2"])
        (True, True, True, False)
    """
    if isinstance(value, bool):
        return _as_yaml(value, words) == str(value).lower()
    if isinstance(value, (list, tuple)):
        words = [word.strip() for word in _as_yaml(value, words)[1:-1].split(",")]
        return len(words) == len(value) and all(map(_comes_from, value, ([word] for word in words)))
    if not words or words[0].startswith("~") or not (value is None or isinstance(value, (int, float, str, PurePath))):
        return True  # no value was given, a parser made another of it, or the field holds what no --set could give
    if value is None:
        return words[0].lower() in ("none", "null")
    if isinstance(value, (int, float)):
        return not _is_number(words[0]) or float(words[0]) == value or value != value  # "4G" takes a parser
    return value == type(value)(words[0]) if isinstance(value, PurePath) else value == words[0]


def _as_yaml(value: Any, words: list[str]) -> str:
    """The words as --set takes them for a field with this value."""
    if isinstance(value, bool):  # a flag needs no word, and one behind it may be another argument
        return "false" if words and words[0].lower() in NO else "true"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(words).strip('[]() ')}]"
    return words[0]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
