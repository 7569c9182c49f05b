"""Worker processes change nothing but the time: the same batches, errors with names, nothing left behind."""

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from hvd_trainer.comm.single import SingleCommunicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.data.sample_seeds import random_states, same_states
from hvd_trainer.errors import ConfigError, DataError
from hvd_trainer.plan import BatchPlan
from tests.data.augmented import Augmented, Broken, Short, remember_worker, tell_threads

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

PLAN = BatchPlan(8, 1, micro_batch=3)


def make(dataset, num_workers=0, **options):
    return Loader(dataset, PLAN, SingleCommunicator(), seed=4, num_workers=num_workers, **options)


def batches(loader, epoch, first_step=0):
    return [micro.data for step in loader.epoch(epoch, first_step) for micro in step]


def same(a, b):
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.fixture(scope="module")
def working():
    return make(Augmented(), num_workers=2)


def test_the_same_batches_in_any_epoch_and_from_any_step(working):
    here = make(Augmented())
    before = random_states()
    assert same(batches(working, 0), batches(here, 0))
    assert same(batches(working, 3, first_step=2), batches(here, 3)[6:])
    assert same_states(before, random_states())  # dropout goes on as without workers


def test_steps_left_out_and_steps_seen_twice(working):
    expected = [list(step) for step in make(Augmented()).epoch(1)]
    for step in working.epoch(1):
        if step.step == 1:
            continue
        for _ in range(2):
            for micro, other in zip(step, expected[step.step]):
                assert torch.equal(micro.data, other.data) and micro.last == other.last
    for _ in working.epoch(1):  # an epoch that is left early
        break
    assert same(batches(working, 2), batches(make(Augmented()), 2))


def test_two_epochs_at_a_time_are_refused(working):
    first, second = working.epoch(0), working.epoch(1)
    list(next(first))
    list(next(second))
    with pytest.raises(DataError, match="two epochs of one Loader"):
        list(next(first))
    assert same([m.data for s in second for m in s], batches(make(Augmented()), 1)[3:])


def test_errors_name_sample_worker_and_rank_and_do_not_end_the_workers():
    loader = make(Broken(), num_workers=1, shuffle=False)
    with pytest.raises(DataError, match=r"(?s)rank 0, worker 0, sample 13: KeyError: 'no label.*in __getitem__"):
        batches(loader, 0)
    assert len(batches(loader, 0, first_step=2)) == 5


def test_workers_have_one_thread_and_end_with_their_loader(tmp_path):
    loader = make(Short(), num_workers=1, shuffle=False, collate_fn=tell_threads, worker_init_fn=remember_worker(tmp_path))
    with pytest.raises(DataError, match=r"(?s)worker 0, sample 2: .*len\(\) 30 but failed with IndexError"):
        batches(loader, 0)
    with pytest.raises(DataError, match="sample 24"):
        batches(loader, 0, first_step=3)
    threads, pid = (tmp_path / "0").read_text().split()
    assert threads == "1"
    del loader
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()
    assert int(pid) != os.getpid()


def test_what_cannot_be_pickled_is_explained():
    class Local(Augmented):
        pass

    locked = Augmented()
    locked.lock = threading.Lock()
    for loader in (make(Local(), 1), make(locked, 1), make(Augmented(), 1, collate_fn=lambda samples: samples)):
        with pytest.raises(ConfigError, match=r"(?s)rank 0: .*cannot be sent to worker processes.*fix: .*top level of a module"):
            batches(loader, 0)


@pytest.mark.parametrize(("name", "value"), [("num_workers", -1), ("num_workers", 1.5), ("num_workers", True), ("prefetch", 0)])
def test_wrong_numbers(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        make(Augmented(), **{name: value})
