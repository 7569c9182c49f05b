"""Second collectives are started in the order of submission, whoever is waited for."""

from __future__ import annotations

from hvd_trainer.comm.relay import Relay


class Firsts:
    """First collectives that are over when the test says so."""

    def __init__(self, relay: Relay, count: int) -> None:
        self.over = [False] * count
        self.started: list[int] = []
        self.marks = [relay.add(lambda i=i: self.over[i], lambda i=i: self.started.append(i)) for i in range(count)]


def test_waiting_for_one_starts_all_before_it() -> None:
    relay = Relay()
    firsts = Firsts(relay, 4)
    relay.run(firsts.marks[2])
    assert firsts.started == [0, 1, 2]
    relay.run(firsts.marks[0])
    assert firsts.started == [0, 1, 2]
    relay.run(relay.mark())
    assert firsts.started == [0, 1, 2, 3]
    relay.run(relay.mark())
    assert firsts.started == [0, 1, 2, 3]


def test_nothing_overtakes_one_that_is_not_over() -> None:
    relay = Relay()
    firsts = Firsts(relay, 3)
    firsts.over[1] = True
    relay.run_ready()
    assert firsts.started == []
    firsts.over[0] = True
    relay.run_ready()
    assert firsts.started == [0, 1]
    relay.run(firsts.marks[1])
    assert firsts.started == [0, 1]
    firsts.over[2] = True
    relay.run_ready()
    relay.run_ready()
    assert firsts.started == [0, 1, 2]


def test_a_mark_covers_what_was_submitted_before_it() -> None:
    relay = Relay()
    assert relay.mark() == 0
    first = Firsts(relay, 1)
    mark = relay.mark()
    second = Firsts(relay, 1)
    relay.run(mark)
    assert first.started == [0] and second.started == []
