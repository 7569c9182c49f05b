"""The time of a step from its parts: compute, communication, and how far one hides the other (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compute:
    """Forward and backward of one micro-batch: `fixed_s + m * sample_s`, and `beyond_s` more for each sample above a knee.

    Args:
        fixed_s: what does not depend on the micro-batch, >= 0.
        sample_s: seconds a sample, >= 0.
        knee: micro-batch from which the slope is another one (caches are full, vector units are), 0 where there is none.
        beyond_s: change of the slope there; may be negative, but not below -sample_s.
    """

    fixed_s: float
    sample_s: float
    knee: float = 0.0
    beyond_s: float = 0.0

    def seconds(self, micro_batch: float) -> float:
        """Seconds of one micro-batch.

        Example:
            >>> Compute(0.01, 0.001).seconds(32), Compute(0.0, 1.0, knee=4, beyond_s=1.0).seconds(6)
            (0.042, 8.0)
        """
        beyond = max(0.0, micro_batch - self.knee) if self.knee else 0.0
        return self.fixed_s + self.sample_s * micro_batch + self.beyond_s * beyond


def overlapped(compute_s: float, sync_s: float, gamma: float) -> float:
    """Both together: `(compute^gamma + sync^gamma)^(1/gamma)`.

    Args:
        compute_s, sync_s: >= 0.
        gamma: 1: one after the other; the larger, the more the shorter one is hidden behind the longer.

    Example:
        >>> overlapped(3.0, 4.0, 1.0), overlapped(3.0, 4.0, 2.0), overlapped(3.0, 0.0, 5.0)
        (7.0, 5.0, 3.0)

    Source: Qiao et al. 2021 (Pollux), equation 12.
    """
    longer, shorter = max(compute_s, sync_s), min(compute_s, sync_s)
    if shorter == 0.0:
        return longer
    # Divided by the longer one, so that a large gamma neither overflows nor vanishes.
    return longer * (1.0 + (shorter / longer) ** gamma) ** (1.0 / gamma)


@dataclass(frozen=True)
class StepTime:
    """A whole step: `(accumulation - 1) * T_grad + update + overlapped(T_grad, T_sync)`.

    Args:
        compute: of one micro-batch.
        update_s: the optimizer's own work, and what else a step does once.
        gamma: see `overlapped`; 1 .. 10.
        sync_factor: how many times as long the messages take within a step as alone: they find a full cache, or hot buckets.
    """

    compute: Compute
    update_s: float = 0.0
    gamma: float = 1.0
    sync_factor: float = 1.0

    def seconds(self, micro_batch: float, accumulation: int = 1, sync_s: float = 0.0) -> float:
        """Seconds of one optimizer step.

        Args:
            micro_batch: samples in one forward pass.
            accumulation: micro-batches, >= 1; only the last one's gradients travel.
            sync_s: the messages of a step alone; 0 for one rank.

        Example:
            >>> round(StepTime(Compute(0.01, 0.001), update_s=0.002).seconds(30, accumulation=2, sync_s=0.05), 6)
            0.132
        """
        gradient_s = self.compute.seconds(micro_batch)
        last_s = overlapped(gradient_s, self.sync_factor * sync_s, self.gamma)
        return (accumulation - 1) * gradient_s + self.update_s + last_s
