"""Links found again from times that known links would give."""

import numpy as np
import pytest

from hvd_trainer.cost.algorithms import GLOO, OPEN_MPI, OURS_ON_MPI
from hvd_trainer.cost.fit_link import fit_links
from hvd_trainer.cost.link import Link, LinkModel
from hvd_trainer.cost.samples import ALLREDUCE, SEND, MessageSample
from hvd_trainer.errors import ConfigError
from tests.properties import given, settings, st

SIZES = (4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)


def samples(model, nodes, each=1, sizes=SIZES, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        seconds = model.buckets_s((size,), nodes, each) * np.exp(noise * rng.standard_normal(5))
        found.append(MessageSample(ALLREDUCE, (size,), nodes, each, tuple(seconds)))
    return found


def send(model, size, nodes=2):
    seconds = model.between.latency_s + size * model.between.seconds_per_byte
    return MessageSample(SEND, (size,), nodes, 1, (seconds,))


@settings(max_examples=8)
@given(st.floats(1e-5, 1e-3), st.floats(1e-9, 5e-8), st.floats(1.0, 2.0), st.sampled_from([GLOO, OPEN_MPI, OURS_ON_MPI]))
def test_two_hosts_predict_three_four_and_eight(latency, beta, duplex, policy):
    """The bar of the command, without a machine's noise: 10 %."""
    true = LinkModel(None, Link(latency, beta, duplex), policy)
    backend, engine = "gloo" if policy is GLOO else "mpi", "mpi" if policy is OURS_ON_MPI else "horovod"
    found = fit_links([*samples(true, 2), send(true, 256 << 10), send(true, 2 << 20)], backend, num_draws=0, engine=engine)
    for nodes in (3, 4, 8):
        sizes = (250_000,) * 20
        assert found.buckets(sizes, nodes, 1).value == pytest.approx(true.buckets_s(sizes, nodes, 1), rel=0.1)


def test_noise_stays_within_the_interval():
    true = LinkModel(None, Link(2e-4, 4e-8, 1.8))
    found = fit_links([*samples(true, 2, noise=0.05), send(true, 1 << 20)], "mpi")
    for nodes in (2, 3, 4):
        guess = found.buckets((1 << 20,), nodes, 1)
        assert guess.low <= true.buckets_s((1 << 20,), nodes, 1) <= guess.high
        assert guess.high / guess.low < 2


def test_what_only_a_send_shows_is_uncertain_without_one():
    """Between two nodes everything is an exchange; between three, some bytes go in one direction."""
    true = LinkModel(None, Link(1e-4, 4e-8, 1.9), OPEN_MPI)
    without = fit_links(samples(true, 2), "mpi", engine="horovod").buckets((4 << 20,), 3, 1)
    with_send = fit_links([*samples(true, 2), send(true, 1 << 20)], "mpi", engine="horovod").buckets((4 << 20,), 3, 1)
    truth = true.buckets_s((4 << 20,), 3, 1)
    assert without.low <= truth <= without.high
    assert without.high / without.low > 1.2 > with_send.high / with_send.low
    assert with_send.value == pytest.approx(truth, rel=0.05)


def test_inside_and_between_are_told_apart():
    true = LinkModel(Link(3e-6, 3e-10), Link(1e-4, 1e-8))
    measured = [*samples(true, 1, 4), *samples(true, 2, 4)]
    found = fit_links(measured, "mpi", num_draws=0)
    assert found.model.inside.seconds_per_byte == pytest.approx(3e-10, rel=0.1)
    assert found.buckets((1 << 20,), 8, 4).value == pytest.approx(true.buckets_s((1 << 20,), 8, 4), rel=0.1)
    assert (found.nodes, found.ranks_per_node) == ((1, 2), (4,))


def test_another_algorithm_is_found_where_several_counts_show_it():
    """An MPI under Horovod that goes round in a ring: at 2 nodes nobody can tell, from 3 and 4 on it shows."""
    ring = LinkModel(None, Link(1e-3, 4e-8), GLOO)
    measured = [*samples(ring, 2), *samples(ring, 3), *samples(ring, 5), send(ring, 1 << 20)]
    found = fit_links(measured, "mpi", num_draws=0, engine="horovod")
    assert found.model.policy.large == "ring" or found.model.policy.shares
    assert found.buckets((4 << 20,), 6, 1).value == pytest.approx(ring.buckets_s((4 << 20,), 6, 1), rel=0.1)


def test_small_and_large_messages_are_fitted_apart():
    """Eager messages at another speed than those that are asked for first, as TCP under Open MPI shows."""
    slow, fast = LinkModel(None, Link(1e-3, 4e-8)), LinkModel(None, Link(1e-5, 1e-9))
    measured = [*samples(fast, 2, sizes=SIZES[:2]), *samples(slow, 2, sizes=SIZES[2:])]
    found = fit_links(measured, "mpi", num_draws=2)
    assert found.buckets((32 << 10,), 2, 1).value == pytest.approx(fast.buckets_s((32 << 10,), 2, 1), rel=0.1)
    assert found.buckets((1 << 20,), 2, 1).value == pytest.approx(slow.buckets_s((1 << 20,), 2, 1), rel=0.1)
    assert found.draws[0].small is not None


def test_a_given_link_takes_the_place_of_a_measured_one():
    inside = LinkModel(Link(3e-6, 3e-10), None)
    found = fit_links(samples(inside, 1, 2), "mpi", num_draws=2)
    with pytest.raises(ConfigError, match="between nodes"):
        found.buckets((1 << 20,), 2, 2)
    given_link = found.with_between(Link(1e-4, 1e-8))
    assert given_link.assumed and given_link.buckets((1 << 20,), 2, 2).value > 1e-2


def test_one_rank_shows_no_link():
    with pytest.raises(ConfigError, match="at least 2 ranks"):
        fit_links([MessageSample(ALLREDUCE, (1024,), 1, 1, (1e-6,))], "mpi")
