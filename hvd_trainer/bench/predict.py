"""From measurements on few ranks to step time and efficiency on many: fits, and one row a number of ranks (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hvd_trainer.errors import ConfigError

MEASURED, BETWEEN, BEYOND, ASSUMED = "measured", "interpolated", "extrapolated", "assumed link"
FUSED_BYTES = 128 * 2**20  # Horovod puts what is under way together into one message up to this size
# On one node a reducer may go through shared memory, between nodes it sends messages: fitted apart.
ONE_NODE, MORE_NODES = False, True


@dataclass(frozen=True)
class Row:
    """One number of ranks.

    Args:
        ranks: in all.
        nodes, ranks_per_node: how they are placed.
        micro_batch, accumulation: of each rank.
        step: seconds of a step.
        compute_s: of it without any other rank: what limits it.
        sync: seconds of the messages alone.
        efficiency: compute over step; 1: the other ranks cost nothing.
        samples_per_s: over all ranks.
        basis: MEASURED, BETWEEN, BEYOND or ASSUMED, and why.
    """

    ranks: int
    nodes: int
    ranks_per_node: int
    micro_batch: int
    accumulation: int
    step: Any
    compute_s: float
    sync: Any
    efficiency: Any
    samples_per_s: float
    basis: str

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Forecast:
    """The fitted models of one set of measurements, and what they predict.

    Args:
        measurements: a `cost.samples.Measurements`.
        link: between nodes, where it was not measured: a `cost.link.Link` that the user gave.
        num_draws: refits for the intervals.

    Raises:
        ConfigError: too little was measured.
    """

    def __init__(self, measurements: Any, link: Any = None, num_draws: int = 60) -> None:
        from hvd_trainer.cost import fit_link, fit_step
        from hvd_trainer.cost.samples import GRADIENT, LOCAL, STEP

        self.measurements = measurements
        fuse = FUSED_BYTES if measurements.engine == "horovod" else 0.0
        self.links = fit_link.fit_links(
            measurements.messages, measurements.backend, fuse_bytes=fuse, num_draws=num_draws, target=measurements.buckets, engine=measurements.engine
        )
        if link is not None and self.links.model.between is None:
            self.links = self.links.with_between(link)
        # Where ranks share a node they share its memory: compute is fitted to the fullest nodes that were measured.
        alone = [s for s in measurements.steps if s.kind in (GRADIENT, LOCAL)]
        fullest = max((s.ranks_per_node for s in alone), default=0)
        self.local = fit_step.fit_compute([s for s in alone if s.ranks_per_node == fullest], num_draws)
        self.steps = {}
        talking = [s for s in measurements.steps if s.kind == STEP and s.nodes * s.ranks_per_node > 1]
        for several in (ONE_NODE, MORE_NODES):
            here = [s for s in talking if (s.nodes > 1) == several]
            # Engine mpi goes through memory of the node where that has several ranks: other messages than were measured alone.
            same = several and not (measurements.engine == "mpi" and any(s.ranks_per_node > 1 for s in here))
            self.steps[several] = fit_step.fit_overlap(self.local, here, self._sync_s, num_draws, same_messages=same)
        if not any(s.nodes > 1 for s in talking):  # nothing better is known of steps over several nodes
            self.steps[MORE_NODES] = self.steps[ONE_NODE]
        self.places = {(s.nodes, s.ranks_per_node) for s in (*measurements.messages, *talking)}

    def _sync_s(self, nodes: int, ranks_per_node: int) -> float:
        return self.links.model.buckets_s(self.measurements.buckets, nodes, ranks_per_node)

    @property
    def usual_ranks_per_node(self) -> int:
        """As many as were measured at most."""
        return max(ranks for _, ranks in self.places)

    @property
    def usual_micro_batch(self) -> int:
        """The workload's own; the largest that was measured where the file does not say."""
        about = self.measurements.about
        return int(about[0].get("rank_batch") or self.local.micro_batches[1]) if about else self.local.micro_batches[1]

    def row(self, ranks: int, ranks_per_node: int, micro_batch: int, accumulation: int = 1) -> Row:
        """Predict one number of ranks.

        Args:
            ranks: in all, >= 1.
            ranks_per_node: on a full node.
            micro_batch, accumulation: of each rank.

        Raises:
            ConfigError: ranks that do not fill their nodes, or a link that is not known.
        """
        from hvd_trainer.cost.robust import estimate

        nodes, each = spread_out(ranks, ranks_per_node)
        sizes = self.measurements.buckets
        compute_s = self.local.model.seconds(micro_batch, accumulation)
        model = self.steps[nodes > 1]
        if ranks == 1:
            sync, syncs = estimate(0.0, [], 0.0), (0.0,)
            model = self.local
        else:
            sync = self.links.buckets(sizes, nodes, each)
            draws = [draw.buckets_s(sizes, nodes, each) for draw in self.links.draws]
            syncs = (self.links.model.buckets_s(sizes, nodes, each), *draws)
        step = model.step(micro_batch, accumulation, syncs)
        efficiency = type(step)(compute_s / step.value, compute_s / step.high, compute_s / step.low)
        samples_per_s = ranks * micro_batch * accumulation / step.value
        basis = self._basis(nodes, each, micro_batch)
        return Row(ranks, nodes, each, micro_batch, accumulation, step, compute_s, sync, efficiency, samples_per_s, basis)

    def _basis(self, nodes: int, ranks_per_node: int, micro_batch: int) -> str:
        low, high = self.local.micro_batches
        notes = [] if low <= micro_batch <= high else [f"micro-batch beyond {low}..{high}"]
        if nodes * ranks_per_node == 1:
            return "; ".join([BEYOND if notes else MEASURED, *notes])
        if nodes > 1 and self.links.assumed:
            return "; ".join([ASSUMED, f"{BEYOND} from 1 node", *notes])
        most_nodes, most_ranks = max(n for n, _ in self.places), max(r for _, r in self.places)
        if nodes > most_nodes:
            notes.insert(0, f"from {most_nodes} node{'s' if most_nodes > 1 else ''}")
        if ranks_per_node > most_ranks:
            notes.insert(0, f"from {most_ranks} rank{'s' if most_ranks > 1 else ''} a node")
        if notes:
            return f"{BEYOND} {'; '.join(notes)}"
        return MEASURED if (nodes, ranks_per_node) in self.places else BETWEEN

    def as_dict(self) -> dict[str, Any]:
        """The fitted numbers, for JSON."""
        links, local = self.links, self.local
        return {
            "links": {
                "inside": links.model.inside and asdict(links.model.inside),
                "between": links.model.between and asdict(links.model.between),
                "assumed": links.assumed,
                "algorithms": str(links.model.policy),
                "scatter": links.scatter,
            },
            "compute": {**asdict(local.model), "scatter": local.scatter, "micro_batches": local.micro_batches},
            "step_one_node": {**asdict(self.steps[ONE_NODE].model), "scatter": self.steps[ONE_NODE].scatter},
            "step_more_nodes": {**asdict(self.steps[MORE_NODES].model), "scatter": self.steps[MORE_NODES].scatter},
        }


def spread_out(ranks: int, ranks_per_node: int) -> tuple[int, int]:
    """(nodes, ranks a node).

    Raises:
        ConfigError: the last node would not be full.

    Example:
        >>> spread_out(8, 2), spread_out(1, 4)
        ((4, 2), (1, 1))
    """
    if ranks <= ranks_per_node:
        return 1, ranks
    if ranks % ranks_per_node:
        raise ConfigError(
            f"{ranks} ranks with {ranks_per_node} on each node",
            "full nodes",
            f"{ranks - ranks % ranks_per_node} or {ranks - ranks % ranks_per_node + ranks_per_node} ranks, or --ranks-per-node",
        )
    return ranks // ranks_per_node, ranks_per_node


def rank_batch(ranks: int, micro_batch: int, global_batch: int | None) -> tuple[int, int]:
    """(micro-batch, accumulation) of the busiest rank.

    Args:
        ranks: in all.
        micro_batch: the most that a forward pass holds; without a global batch, what every rank has (weak scaling).
        global_batch: to be divided (strong scaling).

    Raises:
        ConfigError: more ranks than samples.

    Example:
        >>> rank_batch(8, 32, None), rank_batch(8, 32, 1024), rank_batch(64, 32, 1024)
        ((32, 1), (32, 4), (16, 1))
    """
    if global_batch is None:
        return micro_batch, 1
    if global_batch < ranks:
        raise ConfigError(f"--global-batch {global_batch} on {ranks} ranks", f"at least {ranks}", "give fewer ranks or a larger batch")
    share = -(-global_batch // ranks)
    accumulation = -(-share // micro_batch)
    return -(-share // accumulation), accumulation


def parse_ranks(text: str) -> list[int]:
    """Numbers of ranks from the command line.

    Raises:
        ConfigError: something else than whole numbers >= 1.

    Example:
        >>> parse_ranks("2,8,64,1024")
        [2, 8, 64, 1024]
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"--ranks {text}", "whole numbers >= 1, separated by commas", "--ranks 2,8,64,1024")
    return [int(word) for word in words]


def rows(forecast: Forecast, ranks: Sequence[int], ranks_per_node: int, micro_batch: int, global_batch: int | None) -> list[Row]:
    """One row a number of ranks."""
    return [forecast.row(n, ranks_per_node, *rank_batch(n, micro_batch, global_batch)) for n in ranks]
