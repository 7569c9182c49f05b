"""`run` connects, calls, closes; errors of several ranks are tested in tests/comm and tests/golden."""

import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError


def test_result_config_and_close():
    seen = []

    def main(comm, config):
        seen.append(comm)
        assert not comm.closed
        return config["lr"] * 2

    assert ht.run(main, {"lr": 1.0}, engine="single", argv=["--set", "lr=3"]) == 6.0
    assert seen[0].closed
    assert ht.run(lambda comm: comm.size, engine="single") == 1


def test_arguments_of_the_script(monkeypatch):
    monkeypatch.setattr("sys.argv", ["train.py", "--set", "lr=5"])
    assert ht.run(lambda comm, config: config["lr"], {"lr": 1.0}, engine="single") == 5.0


@pytest.mark.parametrize("rank", ["0", "1"])
def test_help_shows_the_fields_once_and_ends(rank, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["/somewhere/train.py", "--help"])
    for name, value in {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        ht.run(lambda comm, config: pytest.fail("it trained"), {"lr": 0.1, "name": "a"}, engine="single")
    assert ended.value.code == 0
    text = "usage: train.py [--set NAME=VALUE]... [--config FILE.yaml]\n\nfields:\n  lr = 0.1\n  name = 'a'\n"
    assert capsys.readouterr().out == (text if rank == "0" else "")


def test_set_without_a_config():
    for argv in (["--set", "lr=5"], ["--set=lr=5"]):
        with pytest.raises(ConfigError, match="ht.run\\(main, config\\)"):
            ht.run(lambda comm: None, engine="single", argv=argv)
    assert ht.run(lambda comm: 1, engine="single", argv=["--config", "mine"]) == 1  # the script's own, perhaps


def test_errors_go_on_and_the_next_run_starts():
    seen = []

    def main(comm):
        seen.append(comm)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ht.run(main, engine="single")
    assert seen[0].closed
    with pytest.raises(ConfigError, match="no field"):
        ht.run(lambda comm, config: None, {"lr": 1.0}, engine="single", argv=["--set", "x=5"])
    assert ht.run(lambda comm: comm.size, engine="single") == 1


def test_an_empty_config_is_a_config():
    assert ht.run(lambda comm, config: config, {}, engine="single", argv=[]) == {}


@pytest.mark.parametrize(("main", "config"), [(lambda: 0, None), (lambda comm: 0, {"lr": 1.0}), (lambda comm, config: 0, None)])
def test_main_with_other_arguments_is_refused_before_the_start(main, config):
    with pytest.raises(ConfigError, match="ht.run calls main"):
        ht.run(main, config, engine="single", argv=[])


def test_a_misspelt_set_is_refused():
    with pytest.raises(ConfigError, match="--sett is no option"):
        ht.run(lambda comm, config: 0, {"lr": 1.0}, engine="single", argv=["--sett", "lr=2"])
    assert ht.run(lambda comm, config: config["lr"], {"lr": 1.0}, engine="single", argv=["--seed", "2"]) == 1.0
