"""Measuring, on ranks that are threads: what is agreed, and that the times are those of the slowest."""

import time

import pytest
import torch

from hvd_trainer.comm.api import Topology
from hvd_trainer.cost import measure
from hvd_trainer.cost.samples import ALLREDUCE, GRADIENT, SEND, STEP
from hvd_trainer.errors import CollectiveError, ConfigError
from tests.fake_comm import run_threads


def on_nodes(comm, ranks_per_node):
    """The same ranks, as if so many were on each node."""
    comm.topology = Topology(
        comm.rank, comm.size, comm.rank % ranks_per_node, ranks_per_node, comm.rank // ranks_per_node, comm.size // ranks_per_node
    )
    return comm


def test_all_ranks_get_the_times_of_the_slowest():
    def rank(comm):
        return measure.in_turns(comm, {"a": lambda: time.sleep(0.02 if comm.rank == 1 else 0.001), "b": lambda: None}, 0.2)

    first, second = run_threads(2, rank)
    assert first == second
    assert min(first["a"]) >= 0.02 > 0.005 > min(first["b"])


def test_the_budget_decides_the_rounds_within_limits():
    def rounds(budget_s):
        (times,) = run_threads(1, lambda comm: measure.in_turns(comm, {"a": lambda: time.sleep(0.01)}, budget_s))
        return len(times["a"])

    assert rounds(0.0) == measure.FEWEST_ROUNDS
    assert measure.FEWEST_ROUNDS < rounds(0.12) <= 12


def test_short_actions_are_repeated_within_a_round():
    calls = []
    run_threads(1, lambda comm: measure.in_turns(comm, {"a": lambda: calls.append(1)}, 0.0))
    assert len(calls) > 100 * measure.FEWEST_ROUNDS


def test_actions_take_turns():
    order = []
    actions = {name: lambda name=name: (order.append(name), time.sleep(0.003)) for name in "ab"}
    run_threads(1, lambda comm: measure.in_turns(comm, actions, 0.0))
    assert "".join(order).endswith("ab" * 5)


def test_ranks_that_would_time_different_things_are_told():
    with pytest.raises(CollectiveError, match="the actions to time"):
        run_threads(2, lambda comm: measure.in_turns(comm, {comm.rank: lambda: None}, 0.0))


def test_messages_of_two_nodes_include_sends(monkeypatch):
    monkeypatch.setattr(measure, "SWEEP", ((64, 1), (1024, 2)))
    monkeypatch.setattr(measure, "SENDS", ((256, 2),))
    samples = run_threads(2, lambda comm: measure.measure_messages(on_nodes(comm, 1), (128, 32), 0.0))[0]
    assert {(s.kind, s.sizes) for s in samples} == {(ALLREDUCE, (64,)), (ALLREDUCE, (1024, 1024)), (ALLREDUCE, (128, 32)), (SEND, (256, 256))}
    assert all((s.nodes, s.ranks_per_node) == (2, 1) for s in samples)


def test_messages_inside_a_node_do_not(monkeypatch):
    monkeypatch.setattr(measure, "SWEEP", ((64, 1),))
    samples = run_threads(2, lambda comm: measure.measure_messages(comm, (), 0.0))[1]
    assert [(s.kind, s.sizes, s.nodes, s.ranks_per_node) for s in samples] == [(ALLREDUCE, (64,), 1, 2)]


def test_uneven_nodes_are_refused_on_all_ranks():
    def rank(comm):
        comm.topology = Topology(comm.rank, 3, 0 if comm.rank == 2 else comm.rank, 1 if comm.rank == 2 else 2, int(comm.rank == 2), 2)
        return measure.measure_messages(comm)

    outcomes = run_threads(3, rank, catch=True)
    assert all(isinstance(outcome, ConfigError) and "not the same number" in str(outcome) for outcome in outcomes)


def test_steps_may_talk():
    def rank(comm):
        vector = torch.ones(4)
        steps = {
            (GRADIENT, 8, 1): lambda: time.sleep(0.003),
            (STEP, 8, 1): lambda: comm.allreduce_(vector.clone(), "step").wait(),
        }
        return measure.measure_steps(comm, steps, 0.0)

    samples = run_threads(2, rank)[0]
    assert [(s.kind, s.micro_batch, s.ranks_per_node) for s in samples] == [(GRADIENT, 8, 2), (STEP, 8, 2)]
