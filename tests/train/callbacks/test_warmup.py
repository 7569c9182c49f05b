"""Lengths of the warm-up; the rates themselves are tested in test_trainer and test_schedules."""

import math

import pytest

import hvd_trainer as ht
from hvd_trainer.errors import ConfigError
from tests.fake_comm import run_threads
from tests.train.small import Watch, make_loader, make_trainer


@pytest.mark.parametrize("length", [{"epochs": 1.25}, {"steps": 5}, {"samples": 20}])
def test_three_ways_to_say_the_same(length):
    watch = Watch()
    trainer = make_trainer(callbacks=[ht.Warmup(**length), watch])
    trainer.fit(make_loader(trainer.comm), epochs=2)
    assert watch.rates == pytest.approx([0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.2, 0.2])


def test_half_an_epoch_of_an_uneven_number_of_steps():
    watch = Watch()
    trainer = make_trainer(callbacks=[ht.Warmup(epochs=0.625), watch])
    trainer.fit(make_loader(trainer.comm), epochs=1)
    assert watch.rates == pytest.approx([0.1, 0.14, 0.18, 0.2])


def test_samples_mean_the_same_at_every_batch():
    assert ht.Warmup(samples=1000).num_steps(steps_per_epoch=10, global_batch=100) == 10
    assert ht.Warmup(samples=1000).num_steps(steps_per_epoch=10, global_batch=200) == 5


def test_start_factor_for_rates_that_are_not_scaled():
    watch = Watch()
    trainer = make_trainer(callbacks=[ht.Warmup(steps=4, start_factor=0.0), watch], lr_scaling="none")
    trainer.fit(make_loader(trainer.comm), steps=6)
    assert watch.rates == pytest.approx([0.0, 0.025, 0.05, 0.075, 0.1, 0.1])


def test_a_smaller_batch_needs_none():
    watch = Watch()
    trainer = make_trainer(callbacks=[ht.Warmup(steps=4), watch])
    trainer.fit(make_loader(trainer.comm, reference_batch=8), steps=6)
    assert watch.rates == [0.05] * 6


def test_the_same_on_any_number_of_ranks_apart_from_the_scale():
    def rank_main(comm):
        watch = Watch()
        trainer = make_trainer(comm, [ht.Warmup(epochs=1.5), watch], schedule=ht.schedules.cosine(total_epochs=3))
        trainer.fit(make_loader(comm), epochs=3)
        return watch.rates

    one = run_threads(1, rank_main)[0]
    assert run_threads(3, rank_main) == [one] * 3  # the reference batch is given: the scale does not depend on ranks


@pytest.mark.parametrize(
    "arguments",
    [{}, {"epochs": 1, "steps": 1}, {"epochs": -1}, {"steps": math.nan}, {"samples": math.inf}, {"epochs": "5"}, {"epochs": 1, "start_factor": 1.5},
     {"epochs": 1, "start_factor": -0.1}, {"epochs": 1, "start_factor": math.nan}],
    ids=repr,
)  # fmt: skip
def test_arguments_that_cannot_be(arguments):
    with pytest.raises(ConfigError, match="Warmup"):
        ht.Warmup(**arguments)
