"""The names on the command line and what they stand for."""

import pytest

from hvd_trainer.bench.workloads import BUILT_IN, SWEEP, Workload, choose
from hvd_trainer.errors import ConfigError


def names(found):
    return [workload.name for workload in found]


def test_the_default_is_the_four():
    assert choose(()) == list(BUILT_IN)


def test_sweep_script_and_names_add_up(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("")
    assert names(choose((), sweep=True)) == names(SWEEP)
    found = choose(("wide",), str(script))
    assert names(found) == ["wide", "mine"] and found[1].script == str(script)


def test_steps_also_shorten_the_warmup():
    (found,) = choose(("mlp",), steps=10)
    assert (found.steps, found.warmup) == (10, 10)


@pytest.mark.parametrize(
    ("given", "word"),
    [({"names": ("vgg",)}, "vgg"), ({"names": (), "script": "no.py"}, "no.py"), ({"names": (), "steps": 3}, "--steps 3")],
)
def test_refusals(given, word):
    with pytest.raises(ConfigError, match=word):
        choose(**given)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 7])
def test_a_global_batch_is_divided_without_rest(num_ranks):
    shares = [Workload("a", "", global_batch=64).samples(rank, num_ranks) for rank in range(num_ranks)]
    assert sum(shares) == 64 and max(shares) - min(shares) <= 1
