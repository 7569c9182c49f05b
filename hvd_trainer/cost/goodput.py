"""Throughput times statistical efficiency: how much a step of some batch brings for its time (pure)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hvd_trainer.errors import ConfigError


@dataclass(frozen=True)
class CountedSync:
    """Communication by the number of ranks alone, as Pollux has it: for data without message sizes.

    Args:
        inside_s, inside_rank_s: on one node, at 2 ranks and for each further one.
        between_s, between_rank_s: over several nodes.
    """

    inside_s: float
    inside_rank_s: float
    between_s: float
    between_rank_s: float

    def seconds(self, nodes: int, ranks: int) -> float:
        """Seconds of one averaging.

        Args:
            nodes: >= 1.
            ranks: in all, >= 1.

        Example:
            >>> sync = CountedSync(0.004, 0.0005, 0.03, 0.002)
            >>> sync.seconds(1, 1), sync.seconds(1, 4), sync.seconds(2, 4)
            (0.0, 0.005, 0.034)

        Source: Qiao et al. 2021 (Pollux), equation 11.
        """
        if ranks == 1:
            return 0.0
        first_s, further_s = (self.inside_s, self.inside_rank_s) if nodes == 1 else (self.between_s, self.between_rank_s)
        return first_s + further_s * (ranks - 2)


def efficiency(global_batch: float, reference_batch: float, noise_scale: float) -> float:
    """Progress of a sample in this batch, as a share of its progress in the reference batch.

    Args:
        global_batch: samples a step, > 0.
        reference_batch: the batch with efficiency 1.
        noise_scale: in samples, >= 0.

    Example:
        >>> efficiency(128, 32, 300.0), efficiency(64, 64, 0.0)
        (0.7757009345794392, 1.0)

    Source: Qiao et al. 2021 (Pollux), equation 7; McCandlish et al. 2018, equation 2.11.
    """
    return (noise_scale + reference_batch) / (noise_scale + global_batch)


def goodput(global_batch: float, step_s: float, reference_batch: float, noise_scale: float) -> float:
    """Samples a second, counted by what they bring: `M / T * efficiency(M)`.

    Args:
        global_batch: samples a step.
        step_s: seconds a step, > 0.
        reference_batch, noise_scale: see `efficiency`.
    """
    return global_batch / step_s * efficiency(global_batch, reference_batch, noise_scale)


def best_micro_batch(
    step_s: Callable[[int], float], ranks: int, reference_batch: float, noise_scale: float, largest: int
) -> tuple[int, float]:
    """The micro-batch with the highest goodput, and that goodput, without accumulation.

    Args:
        step_s: seconds of a step with this micro-batch.
        ranks: >= 1.
        reference_batch, noise_scale: see `efficiency`; smaller global batches than the reference are left out.
        largest: micro-batch that fits.

    Raises:
        ConfigError: none is allowed.

    Example:
        >>> best_micro_batch(lambda m: 1.0, ranks=2, reference_batch=8, noise_scale=100.0, largest=64)[0]
        64
    """
    first = max(1, -(-int(reference_batch) // ranks))
    if first > largest:
        raise ConfigError(
            f"{ranks} ranks with micro-batches of at most {largest}",
            f"a global batch of at least the reference, {reference_batch:g}",
            "accumulate, or lower the reference batch",
        )
    # Every whole number: the curve is flat at its top, and a coarse grid would pick its own points.
    return max(((m, goodput(ranks * m, step_s(m), reference_batch, noise_scale)) for m in range(first, largest + 1)), key=lambda p: p[1])
