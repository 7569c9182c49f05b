"""Latency, bandwidth and duplex of the links, from measured times of messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hvd_trainer.cost import robust
from hvd_trainer.cost.algorithms import POLICIES, Policy, Traffic, policy_of
from hvd_trainer.cost.link import Link, LinkModel, fused
from hvd_trainer.cost.robust import Estimate, Prior
from hvd_trainer.cost.samples import ALLREDUCE, SEND, MessageSample
from hvd_trainer.errors import ConfigError

# Logarithms of seconds and of seconds a byte: a millionth of a second to a second, 100 kB/s to 1 TB/s.
INSIDE = (Prior(math.log(2e-6), 3.0, math.log(1e-8), 0.0), Prior(math.log(2e-10), 2.0, math.log(1e-12), math.log(1e-5)))
BETWEEN = (Prior(math.log(5e-5), 3.0, math.log(1e-8), 0.0), Prior(math.log(2e-9), 2.0, math.log(1e-12), math.log(1e-5)))
# How many times as long a byte takes while one comes the other way, when nothing shows it: anything from 1 to 2.
DUPLEX = Prior(1.5, 0.3, 1.0, 2.0)
ONE_SEND = Traffic(0, 0.0, 1, 1.0)
# Another algorithm than the engine's usual one is believed only where that one fits badly and the other much better.
BAD_FIT, MUCH_BETTER = 0.10, 0.5
# Smaller vectors are fitted apart. Over TCP, Open MPI sends up to 64 KB at once and asks before it sends more, and a vector
# travels in halves and quarters.
BORDER_BYTES = 128 * 1024
# How fast a measurement loses weight with its distance from the sizes to be predicted.
OCTAVES, LEAST_WEIGHT = 1.5, 0.03


@dataclass(frozen=True)
class FittedLinks:
    """Links with their uncertainty.

    Args:
        model: the best fit.
        draws: fits to disturbed data.
        scatter: standard deviation of log(measured / fitted).
        nodes: number of nodes of each measurement that was used, without repetition.
        ranks_per_node: likewise.
        assumed: the link between nodes was given, not measured.
    """

    model: LinkModel
    draws: tuple[LinkModel, ...]
    scatter: float
    nodes: tuple[int, ...]
    ranks_per_node: tuple[int, ...]
    assumed: bool = False

    def buckets(self, sizes: Sequence[float], nodes: int, ranks_per_node: int) -> Estimate:
        """Seconds of the allreduces of a step, with the interval.

        Args:
            sizes: bytes of each bucket.
            nodes, ranks_per_node: >= 1.

        Raises:
            ConfigError: a link that it needs is not known.
        """
        draws = [draw.buckets_s(sizes, nodes, ranks_per_node) for draw in self.draws]
        return robust.estimate(self.model.buckets_s(sizes, nodes, ranks_per_node), draws, self.scatter)

    def with_between(self, link: Link) -> FittedLinks:
        """The same with a link between nodes that somebody gave."""
        return replace(
            self, model=_between(self.model, link), draws=tuple(_between(draw, link) for draw in self.draws), assumed=True
        )


def _between(model: LinkModel, link: Link) -> LinkModel:
    return replace(model, between=link, small=model.small and replace(model.small, between=link))


def fit_links(
    samples: Sequence[MessageSample], backend: str, policy: Policy | None = None, fuse_bytes: float = 0.0, num_draws: int = 60,
    target: Sequence[float] = (), engine: str = "mpi",
) -> FittedLinks:  # fmt: skip
    """Fit all links that the samples show.

    Args:
        samples: of one engine, any number of places. Places with several nodes determine the link between them.
        backend, engine: of the Communicator, which say the usual algorithm.
        policy: the algorithms, where they are known; by default theirs, or others of `POLICIES` where several
            numbers of nodes were measured and show that it takes another.
        fuse_bytes: see `LinkModel`.
        num_draws: refits for the uncertainty.
        target: sizes of the messages that will be predicted: measurements near them count more, for no network is a
            straight line from 1 KB to 1 GB; none: all count the same.

    Raises:
        ConfigError: no sample of more than one rank.

    Example:
        >>> from hvd_trainer.cost.samples import MessageSample
        >>> from hvd_trainer.cost.algorithms import OPEN_MPI
        >>> true = LinkModel(None, Link(1e-4, 1e-8, 1.5), OPEN_MPI)
        >>> sizes = (1 << 17, 1 << 19, 1 << 20, 1 << 22)
        >>> samples = [MessageSample("allreduce", (s,), n, 1, (true.allreduce_s(s, n, 1),)) for s in sizes for n in (2, 3)]
        >>> found = fit_links(samples, "mpi", num_draws=2, engine="horovod").model.between
        >>> round(found.latency_s * 1e6, -1), round(found.seconds_per_byte * 1e9, 1), round(found.duplex, 1)
        (100.0, 10.0, 1.5)
    """
    samples = [sample for sample in samples if sample.nodes * sample.ranks_per_node > 1]
    if not samples:
        raise ConfigError(
            "no messages between ranks were measured", "measurements of at least 2 ranks", "start the measurement on 2 ranks"
        )
    large = [sample for sample in samples if _mean_size(sample, fuse_bytes) >= BORDER_BYTES]
    small = [sample for sample in samples if _mean_size(sample, fuse_bytes) < BORDER_BYTES]
    if not (_places(small) == _places(large)):
        small, large = [], samples  # one of them would lack a link
    usual = policy_of(backend, engine)
    model, draws, scatter = _best(large, usual, policy, fuse_bytes, num_draws, target)
    if small:
        below, below_draws, _ = _best(small, usual, policy or model.policy, fuse_bytes, num_draws, ())
        model = replace(model, small=below, border_bytes=BORDER_BYTES)
        draws = [replace(draw, small=other, border_bytes=BORDER_BYTES) for draw, other in zip(draws, below_draws)]
    return FittedLinks(
        model,
        tuple(draws),
        scatter,
        tuple(sorted({sample.nodes for sample in samples})),
        tuple(sorted({sample.ranks_per_node for sample in samples})),
    )


def _mean_size(sample: MessageSample, fuse_bytes: float) -> float:
    return typical_bytes(fused(sample.sizes, fuse_bytes))


def typical_bytes(sizes: Sequence[float]) -> float:
    """The size of message in which the average byte travels.

    Example:
        >>> typical_bytes([1000, 1000, 8]), typical_bytes([64])
        (996.0478087649402, 64.0)
    """
    return sum(size**2 for size in sizes) / sum(sizes)


def _places(samples: Sequence[MessageSample]) -> set[tuple[bool, bool]]:
    """Which links the samples go over."""
    return {(sample.nodes > 1, sample.ranks_per_node > 1) for sample in samples}


def _best(
    samples: Sequence[MessageSample], usual: Policy, policy: Policy | None, fuse_bytes: float, num_draws: int, target: Sequence[float]
) -> tuple[LinkModel, list[LinkModel], float]:
    """(model, draws, scatter) with the usual algorithm, or with another one that fits much better."""
    target_bytes = typical_bytes(fused(target, fuse_bytes)) if target else 0.0
    weights = [relevance(_mean_size(sample, fuse_bytes), target_bytes) for sample in samples]
    best = _fit(samples, weights, policy or usual, fuse_bytes, num_draws)
    members = {sample.nodes * sample.ranks_per_node for sample in samples if sample.kind == ALLREDUCE}
    if policy is None and len(members) > 1 and best[0].scatter > BAD_FIT:
        for other in POLICIES:
            tried = _fit(samples, weights, other, fuse_bytes, 0)
            if tried[0].cost < MUCH_BETTER * best[0].cost:
                best = _fit(samples, weights, other, fuse_bytes, num_draws)
    fitted, model_of = best
    return model_of(fitted.theta), [model_of(draw) for draw in fitted.draws], fitted.scatter


def relevance(nbytes: float, target_bytes: float) -> float:
    """Weight of a measurement with messages of this size: halved within two octaves, never nothing.

    Example:
        >>> relevance(1 << 20, 1 << 20), relevance(1 << 20, 0), 0.4 < relevance(1 << 18, 1 << 20) < 0.5
        (1.0, 1.0, True)
    """
    if target_bytes <= 0:
        return 1.0
    octaves = math.log2(nbytes / target_bytes)
    return LEAST_WEIGHT + (1 - LEAST_WEIGHT) * math.exp(-(octaves**2) / (2 * OCTAVES**2))


def _fit(samples: Sequence[MessageSample], weights: Sequence[float], policy: Policy, fuse_bytes: float, num_draws: int):
    """(the fit, the function that makes a LinkModel of its parameters)."""
    uses_inside = any(sample.ranks_per_node > 1 for sample in samples)
    uses_between = any(sample.nodes > 1 for sample in samples)
    priors = [*(INSIDE if uses_inside else ()), *((*BETWEEN, DUPLEX) if uses_between else ())]

    def model_of(theta: np.ndarray) -> LinkModel:
        inside = Link(math.exp(theta[0]), math.exp(theta[1])) if uses_inside else None
        between = Link(math.exp(theta[-3]), math.exp(theta[-2]), float(theta[-1])) if uses_between else None
        return LinkModel(inside, between, policy, fuse_bytes)

    # The time is linear in latencies, in seconds a byte and in their product with duplex; so the sizes are gone through once.
    nothing = Link(0.0, 0.0)
    latency, one_way, both_ways = Link(1.0, 0.0), Link(0.0, 1.0, 0.0), Link(0.0, 1.0, 1.0)
    bases = [(link, nothing) for link in (latency, both_ways)] + [(nothing, link) for link in (latency, one_way, both_ways)]
    table = np.array([[_seconds(LinkModel(a, b, policy, fuse_bytes), s) for a, b in bases] for s in samples])
    table[:, 4] -= table[:, 3]

    def predict(theta: np.ndarray) -> np.ndarray:
        parts = np.zeros(5)
        if uses_inside:
            parts[:2] = np.exp(theta[:2])
        if uses_between:
            alpha, beta = np.exp(theta[-3:-1])
            parts[2:] = alpha, beta, beta * theta[-1]
        return table @ parts

    return robust.fit(predict, [sample.undisturbed_s for sample in samples], priors, num_draws, weights=weights), model_of


def _seconds(model: LinkModel, sample: MessageSample) -> float:
    if sample.kind == SEND:
        link = model.between if sample.nodes > 1 else model.inside
        return sum(link.seconds(ONE_SEND, size) for size in sample.sizes)
    return model.buckets_s(sample.sizes, sample.nodes, sample.ranks_per_node)
