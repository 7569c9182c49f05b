"""The link model: limits in which the answer is known, and what must grow with what."""

import pytest

from hvd_trainer.cost.algorithms import GLOO, OPEN_MPI, OURS_ON_MPI, POLICIES
from hvd_trainer.cost.link import Link, LinkModel, fused, parse_link
from hvd_trainer.errors import ConfigError
from tests.properties import given, st

LATENCY = st.floats(1e-7, 1e-2)
BETA = st.floats(1e-11, 1e-7)
NODES, EACH = st.integers(1, 64), st.integers(1, 8)
POLICY = st.sampled_from(POLICIES)
BYTES = st.integers(1, 1 << 28)


@given(LATENCY, BETA, st.floats(1, 2), NODES, EACH, BYTES, POLICY)
def test_grows_with_bytes_and_nodes_and_never_below_the_wire(latency, beta, duplex, nodes, each, nbytes, policy):
    model = LinkModel(Link(latency / 10, beta / 10), Link(latency, beta, duplex), policy)
    seconds = model.allreduce_s(nbytes, nodes, each)
    assert seconds >= 0 and (seconds == 0) == (nodes * each == 1)
    if policy.algorithm(nbytes, nodes, each) == policy.algorithm(2 * nbytes, nodes, each):
        assert model.allreduce_s(2 * nbytes, nodes, each) >= seconds
    assert model.allreduce_s(nbytes, 2 * nodes, each) >= seconds * (1 - 1e-12)
    if nodes > 1:
        assert seconds >= beta * nbytes * (nodes - 1) / nodes


@given(BETA, BYTES, st.sampled_from([2, 4, 8, 64]))
def test_without_latency_ring_and_halving_doubling_are_equal_at_powers_of_two(beta, nbytes, nodes):
    link = Link(0.0, beta)
    nbytes = max(nbytes, 1 << 13)
    ring, halving, ours = (LinkModel(None, link, policy) for policy in (GLOO, OPEN_MPI, OURS_ON_MPI))
    assert ring.allreduce_s(nbytes, nodes, 1) == pytest.approx(halving.allreduce_s(nbytes, nodes, 1))
    assert ring.allreduce_s(nbytes, nodes, 1) == pytest.approx(ours.allreduce_s(nbytes, nodes, 1))


def test_in_shares_each_rank_of_a_node_sends_its_own():
    link, inside = Link(0.0, 1e-8), Link(0.0, 1e-9)
    seconds = LinkModel(inside, link, OURS_ON_MPI).allreduce_s(1e6, 3, 2)
    assert seconds == pytest.approx(2 * 1e-2 * 4 / 3 + 1e-3)  # two ranks through one link, each 2 x 2/3; and inside


@given(LATENCY, BETA, NODES, EACH, BYTES, POLICY)
def test_half_duplex_costs_at_most_twice(latency, beta, nodes, each, nbytes, policy):
    inside = Link(1e-7, 1e-11)
    full = LinkModel(inside, Link(latency, beta), policy).allreduce_s(nbytes, nodes, each)
    half = LinkModel(inside, Link(latency, beta, 2.0), policy).allreduce_s(nbytes, nodes, each)
    assert full <= half <= 2 * full


def test_buckets_are_one_after_the_other_or_fused():
    model = LinkModel(None, Link(1e-3, 1e-9), GLOO)
    alone = model.allreduce_s(1e6, 2, 1)
    assert model.buckets_s([1e6] * 5, 2, 1) == pytest.approx(5 * alone)
    together = LinkModel(None, Link(1e-3, 1e-9), GLOO, fuse_bytes=1e9).buckets_s([1e6] * 5, 2, 1)
    assert together == pytest.approx(model.allreduce_s(5e6, 2, 1)) and together < 5 * alone


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 200))
def test_fusing_keeps_the_bytes_and_the_limit(sizes, limit):
    messages = fused(sizes, limit)
    assert sum(messages) == sum(sizes)
    assert all(message <= max(limit, *sizes) for message in messages)


def test_small_messages_have_links_of_their_own():
    small = LinkModel(None, Link(1e-5, 0.0))
    model = LinkModel(None, Link(1e-3, 1e-8), small=small, border_bytes=1000)
    assert model.allreduce_s(999, 2, 1) == small.allreduce_s(999, 2, 1)
    assert model.allreduce_s(1000, 2, 1) > 1e-3


def test_in_doubling_the_ranks_of_a_node_share_its_link():
    model = LinkModel(Link(0.0, 0.0), Link(0.0, 1e-6))
    assert model.allreduce_s(1000, 2, 4) == pytest.approx(4 * model.allreduce_s(1000, 2, 1))


@pytest.mark.parametrize(("nodes", "each", "words"), [(1, 2, "inside a node"), (2, 1, "between nodes")])
def test_an_unknown_link_is_named(nodes, each, words):
    with pytest.raises(ConfigError, match=words):
        LinkModel(None, None).allreduce_s(1e6, nodes, each)


@pytest.mark.parametrize("text", ["", "10gbit", "10,30us", "0gbit,1us", "1.2.3gbit,1us", "10gbit,30us,full"])
def test_a_link_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="bandwidth,latency"):
        parse_link(text)


def test_half_duplex_can_be_said():
    assert parse_link("100 mbit , 0.5ms, half") == Link(5e-4, 8e-8, 2.0)
