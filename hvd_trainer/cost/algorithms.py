"""What an allreduce sends, per algorithm: how many messages one after the other, and how much of the vector (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hvd_trainer.comm.mpi_shares import least_bytes
from hvd_trainer.errors import ConfigError

OPEN_MPI_SMALL_BYTES = 8192  # below it Open MPI 5 doubles; from it on it halves and doubles (a ring of 2 or 3 is as good)


@dataclass(frozen=True)
class Traffic:
    """The longest chain of messages in one allreduce of a vector, as seen by the busiest member.

    A member that sends and receives at the same time (an exchange) may take longer than one that only does one of both:
    links and protocols are not always fully duplex. So the two are counted apart.

    Args:
        exchanges: messages sent while one is received.
        exchanged: bytes in them, as a multiple of the vector.
        sends: messages in one direction.
        sent: bytes in them, likewise.
    """

    exchanges: int = 0
    exchanged: float = 0.0
    sends: int = 0
    sent: float = 0.0

    @property
    def messages(self) -> int:
        """All of them: each costs a latency."""
        return self.exchanges + self.sends


def ring(members: int) -> Traffic:
    """Each member passes 1/members of the vector to the next, 2 (members - 1) times.

    Example:
        >>> ring(4)
        Traffic(exchanges=6, exchanged=1.5, sends=0, sent=0.0)

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", section 3.
    """
    return Traffic(2 * (members - 1), 2 * (members - 1) / members)


def recursive_doubling(members: int) -> Traffic:
    """The whole vector is exchanged log2(members) times; members beyond a power of two hand in theirs and get the sum.

    Example:
        >>> recursive_doubling(4), recursive_doubling(5).sent
        (Traffic(exchanges=2, exchanged=2.0, sends=0, sent=0.0), 2.0)

    Source: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH", section 4.5.
    """
    doublings, is_power = _log2(members)
    beyond = 0 if is_power else 2
    return Traffic(doublings, float(doublings), beyond, float(beyond))


def halving_doubling(members: int) -> Traffic:
    """Rabenseifner's: a reduce-scatter by halves, then an allgather by doubles.

    Beyond a power of two, a pair first exchanges halves and one of them gets the other's half of the sum (1/2 + 1/2);
    at the end it passes the whole sum on (1).

    Example:
        >>> halving_doubling(4), halving_doubling(3)
        (Traffic(exchanges=4, exchanged=1.5, sends=0, sent=0.0), Traffic(exchanges=3, exchanged=1.5, sends=2, sent=1.5))

    Source: Thakur, Rabenseifner and Gropp 2005, section 4.5.
    """
    doublings, is_power = _log2(members)
    core = 2**doublings
    exchanged = 2 * (core - 1) / core
    if is_power:
        return Traffic(2 * doublings, exchanged)
    return Traffic(2 * doublings + 1, exchanged + 0.5, 2, 1.5)


def tree(members: int) -> Traffic:
    """A reduction to one member and a broadcast from it, over a binomial tree; the whole vector in each message.

    Example:
        >>> tree(4), tree(1).messages
        (Traffic(exchanges=0, exchanged=0.0, sends=4, sent=4.0), 0)
    """
    doublings, is_power = _log2(members)
    depth = 2 * (doublings + (not is_power))
    return Traffic(0, 0.0, depth, float(depth))


def _log2(members: int) -> tuple[int, bool]:
    """floor(log2(members)), and whether that is exact."""
    power = members.bit_length() - 1
    return power, members == 2**power


BY_NAME: dict[str, Callable[[int], Traffic]] = {
    "ring": ring,
    "shares": ring,  # each sends every other its share, adds up its own and passes the sum round: as many messages and bytes
    "recursive doubling": recursive_doubling,
    "halving-doubling": halving_doubling,
    "tree": tree,
}


@dataclass(frozen=True)
class Policy:
    """Which algorithm an engine takes for which message.

    Args:
        small: for messages below `small_bytes`.
        large: for the others.
        small_bytes: the border.
        shares: engine mpi's own way between nodes is taken where it is.
    """

    small: str
    large: str
    small_bytes: int = OPEN_MPI_SMALL_BYTES
    shares: bool = False

    def __post_init__(self) -> None:
        for name in (self.small, self.large):
            if name not in BY_NAME:
                raise ConfigError(f"algorithm {name!r}", ", ".join(BY_NAME), "name one of them")

    def algorithm(self, nbytes: float, nodes: int = 1, ranks_per_node: int = 1) -> str:
        """The name for a message of this size."""
        if self.shares and nodes > 1 and nbytes >= least_bytes(nodes * ranks_per_node):
            return "shares"
        return self.small if nbytes < self.small_bytes else self.large

    def __str__(self) -> str:
        words = self.large if self.small == self.large else f"{self.small} below {self.small_bytes:,} B, else {self.large}"
        return f"{words}; shares between nodes whose ranks are no power of two" if self.shares else words


# Open MPI's fixed rules (coll/tuned) differ with the number of ranks below 64 KB; what all of them have in common is kept.
OPEN_MPI = Policy("recursive doubling", "halving-doubling")
OURS_ON_MPI = replace(OPEN_MPI, shares=True)
GLOO = Policy("ring", "ring")
POLICIES = (OPEN_MPI, OURS_ON_MPI, GLOO, Policy("recursive doubling", "ring"), Policy("tree", "tree"), Policy("recursive doubling", "recursive doubling"))


def policy_of(backend: str, engine: str = "mpi") -> Policy:
    """What a Communicator does by default.

    Args:
        backend: "mpi", "gloo", "nccl" or "none".
        engine: "horovod" leaves all to the backend; "mpi" adds large messages between nodes in shares.

    Example:
        >>> str(policy_of("gloo")), policy_of("mpi").algorithm(1 << 20), policy_of("mpi").algorithm(1 << 20, nodes=3)
        ('ring', 'halving-doubling', 'shares')

    Source: ompi/mca/coll/tuned/coll_tuned_decision_fixed.c of Open MPI 5 (commutative operations); gloo/allreduce.h,
        whose default is the ring; NCCL's ring for large messages.
    """
    if backend not in ("mpi", "none"):
        return GLOO
    return OURS_ON_MPI if engine == "mpi" else OPEN_MPI
