"""What `hvd-trainer launch` accepts, and the message for what it does not."""

import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.launcher.spec import Host, LaunchSpec, check_script, parse_hostfile, parse_hosts


def spec(**changes):
    return LaunchSpec(**{"ranks": 2, "command": ("train.py", "--lr", "1"), "python": "/v/bin/python", **changes})


def test_the_command_ends_every_line():
    assert spec().argv == ["/v/bin/python", "train.py", "--lr", "1"]
    assert spec(ranks=3, hosts=(Host("a", 1), Host("b", 2))).hosts_text == "a:1,b:2"


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"ranks": 0}, "-np 0"),
        ({"ranks": -1}, "-np -1"),
        ({"ranks": 10**6}, "1 to 100000"),
        ({"threads": 0}, "--threads 0"),
        ({"command": ()}, "no script was given"),
        ({"hosts": (Host("a", 1),)}, "a:1 is room for 1"),
        ({"hosts": (Host("a", 1), Host("a", 2))}, "host a is named twice"),
    ],
)
def test_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        spec(**changes)


@pytest.mark.parametrize("text", ["", "a,", ":2", "a:", "a:0", "a:x", "a:-1", "-a:1", "a b:1"])
def test_hosts_refused(text):
    with pytest.raises(ConfigError, match="--hosts"):
        parse_hosts(text)


def test_hosts():
    assert parse_hosts("a, b:3") == (Host("a", 1), Host("b", 3))
    assert parse_hostfile("a slots=2  # one\n\n#x\nb:3\nc") == (Host("a", 2), Host("b", 3), Host("c", 1))


@pytest.mark.parametrize(
    "text, words", [("", "names no host"), ("a\nb slots=x", "line 2"), ("a 4", "line 1"), ("a slots=2 max=3", "line 1")]
)
def test_hostfile_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        parse_hostfile(text)


def test_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    check_script((str(script), "python"))
    check_script(())
    with pytest.raises(ConfigError, match="(?s)'python' is not a file.*leave out the word python"):
        check_script(("python", "train.py"))
