"""Trials at the same time: on slots of their own, with one budget, and ended together."""

import os
import signal
import threading
import time

import pytest

from hvd_trainer.errors import ConfigError
from hvd_trainer.tune.ledger import Ledger
from hvd_trainer.tune.runner import TrialRunner
from hvd_trainer.tune.search import Options, Search, best_of
from hvd_trainer.tune.side_by_side import SideBySide, threads_for
from hvd_trainer.tune.target import parse_target
from tests.tune.fake_job import FakeJob

TARGET = parse_target("val_loss<=0.4")


def test_a_search_with_two_slots_uses_both_at_once_and_has_as_many_trials(tmp_path):
    busy, most, lock = [0], [0], threading.Lock()

    def slot(job):
        def start(*arguments):
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            time.sleep(0.02)
            ended = job(*arguments)
            with lock:
                busy[0] -= 1
            return ended

        return TrialRunner(start, TARGET)

    jobs = FakeJob(), FakeJob()
    hunt = Search(slot(FakeJob()), Ledger(str(tmp_path / "journal"), {}), Options((2,), 1000.0, max_trials=9, phases=False), slots=SideBySide([slot(job) for job in jobs]))
    records = hunt.run()
    assert len(records) == 9 and most[0] == 2 and all(len(job.calls) > 2 for job in jobs)
    assert best_of(records, 2) is not None and {record.result.shared_by for record in records} == {1, 2}
    spent_s = sum(record.result.wall_s for record in records)
    assert 1000.0 - hunt.left_s < spent_s


def test_ctrl_c_ends_all_slots_and_keeps_what_was_over(ctrl_c_raises):
    """One slot's run was over, the other's was not."""
    stop = threading.Event()

    def waits(runner):
        assert stop.wait(30)
        raise KeyboardInterrupt

    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    results, error = SideBySide([TrialRunner(FakeJob(), TARGET)] * 2, stop).run([waits, lambda runner: [None]])
    assert isinstance(error, KeyboardInterrupt) and results == [None, [None]] and stop.is_set()


def test_more_than_the_cores_is_refused():
    assert (threads_for(2, (1, 2), None, 8), threads_for(1, (2,), 1, 2)) == (2, 1)
    with pytest.raises(ConfigError, match="--jobs 2 with 2 ranks of 1 thread on 2 cores"):
        threads_for(2, (1, 2), None, 2)
