"""What an allreduce sends: against a count of a simulated run, and against the lower bounds."""

import math

import pytest

from hvd_trainer.comm.mpi_shares import SHARE_BYTES
from hvd_trainer.cost.algorithms import (
    BY_NAME,
    GLOO,
    OPEN_MPI,
    Policy,
    halving_doubling,
    policy_of,
    recursive_doubling,
    ring,
    tree,
)
from hvd_trainer.errors import ConfigError
from tests.properties import given, st

MEMBERS = st.integers(1, 3000)


@pytest.mark.parametrize("name", BY_NAME)
def test_one_member_sends_nothing(name):
    traffic = BY_NAME[name](1)
    assert traffic.messages == 0 and traffic.exchanged == traffic.sent == 0


@given(MEMBERS, st.sampled_from(sorted(BY_NAME)))
def test_never_less_than_the_lower_bounds(members, name):
    """Patarasuk and Yuan: 2 (p-1)/p of the vector must leave each member; and log2(p) messages in a row reach all."""
    traffic = BY_NAME[name](members)
    assert traffic.exchanged + traffic.sent >= 2 * (members - 1) / members - 1e-12
    assert traffic.messages >= math.ceil(math.log2(members))


@given(MEMBERS)
def test_ring_and_halving_doubling_move_the_same_at_powers_of_two(members):
    power = 2 ** (members.bit_length() - 1)
    assert halving_doubling(power).exchanged == pytest.approx(ring(power).exchanged)
    assert halving_doubling(power).sent == 0


def simulated_halving_doubling(members):
    """Bytes through the busiest member, counted message by message in a run on real vectors: exchanged, sent."""
    core = 2 ** (members.bit_length() - 1)
    extra = members - core
    size = 64 * core
    vectors = [[float(rank + i) for i in range(size)] for rank in range(members)]
    wanted = [sum(vector[i] for vector in vectors) for i in range(size)]
    exchanged = sent = 0.0
    partner = {2 * i: 2 * i + 1 for i in range(extra)}
    for even, odd in partner.items():  # they exchange halves, and the odd one hands its sums over
        for i in range(size // 2):
            vectors[even][i] += vectors[odd][i]
        for i in range(size // 2, size):
            vectors[odd][i] += vectors[even][i]
        vectors[even][size // 2 :] = vectors[odd][size // 2 :]
    if extra:
        exchanged, sent = 0.5, 0.5
    ranks = [rank for rank in range(members) if rank not in partner.values()]
    mine = {new: (0, size) for new in range(core)}
    distance = 1
    while distance < core:
        before = [list(vectors[rank]) for rank in ranks]
        for new in range(core):
            low, high = mine[new]
            middle = (low + high) // 2
            mine[new] = (low, middle) if not new & distance else (middle, high)
            for i in range(*mine[new]):
                vectors[ranks[new]][i] = before[new][i] + before[new ^ distance][i]
        exchanged += (mine[0][1] - mine[0][0]) / size
        distance *= 2
    for new in range(core):  # the allgather sends back what the halving kept
        assert [vectors[ranks[new]][i] for i in range(*mine[new])] == wanted[slice(*mine[new])]
    exchanged += (core - 1) / core
    return exchanged, sent + (1.0 if extra else 0.0)


@pytest.mark.parametrize("members", [2, 3, 4, 5, 6, 7, 8, 12])
def test_halving_doubling_counts_as_a_simulated_run(members):
    traffic = halving_doubling(members)
    assert (traffic.exchanged, traffic.sent) == pytest.approx(simulated_halving_doubling(members))


def test_beyond_a_power_of_two_doubling_pays_twice_the_vector():
    assert recursive_doubling(5).sent == 2 and recursive_doubling(5).messages == 4
    assert recursive_doubling(8).messages == 3
    assert tree(5).messages == 6


def test_policy_switches_at_the_border_and_refuses_unknown_names():
    assert OPEN_MPI.algorithm(8191) == "recursive doubling" and OPEN_MPI.algorithm(8192) == "halving-doubling"
    assert policy_of("gloo") == policy_of("nccl") == GLOO and policy_of("mpi", "horovod") == OPEN_MPI
    with pytest.raises(ConfigError, match="butterfly"):
        Policy("ring", "butterfly")


@pytest.mark.parametrize(("nbytes", "nodes", "each", "name"), [
    (3 * SHARE_BYTES, 3, 1, "shares"), (3 * SHARE_BYTES - 1, 3, 1, "halving-doubling"), (1 << 30, 2, 1, "halving-doubling"),
    (6 * SHARE_BYTES, 3, 2, "shares"), (1 << 30, 2, 2, "halving-doubling"), (1 << 30, 1, 6, "halving-doubling"),
    (100, 3, 1, "recursive doubling"),
])  # fmt: skip
def test_engine_mpi_adds_in_shares_between_nodes_beyond_a_power_of_two(nbytes, nodes, each, name):
    assert policy_of("mpi").algorithm(nbytes, nodes, each) == name
    assert policy_of("mpi", "horovod").algorithm(nbytes, nodes, each) != "shares"
