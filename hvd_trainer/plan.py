"""The global batch is the recipe: rank batches, micro-batches and accumulation are derived from it, never rounded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Optional, Union

from hvd_trainer.errors import ConfigError, DataError
from hvd_trainer.values import as_whole


def split_evenly(count: int, num_parts: int) -> list[int]:
    """Cut `count` samples into `num_parts` sizes that differ by at most one, the larger ones first.

    Args:
        count: samples, >= 0.
        num_parts: >= 1.

    Returns:
        `num_parts` sizes >= 0 whose sum is `count`.

    Example:
        >>> split_evenly(8, 4), split_evenly(7, 3), split_evenly(1, 2), split_evenly(0, 2)
        ([2, 2, 2, 2], [3, 2, 2], [1, 0], [0, 0])
    """
    size, extra = divmod(count, num_parts)
    return [size + 1] * extra + [size] * (num_parts - extra)


@dataclass(frozen=True)
class BatchPlan:
    """How one global batch is divided among ranks and micro-batches.

    Args:
        global_batch: samples over all ranks in one optimizer step, >= num_ranks.
        num_ranks: world size, >= 1.
        reference_batch: the global batch for which the learning rate was tuned. Left out, it is the rank batch of the
            first start, so that the linear rule scales by the number of ranks; it is then kept in the checkpoint.
        micro_batch: the most samples that one forward pass may hold; None: the whole rank batch at once.

    Raises:
        ConfigError: a value is not a whole number >= 1, or the global batch is smaller than the number of ranks.

    Example:
        >>> plan = BatchPlan(global_batch=250, num_ranks=4, micro_batch=32)
        >>> plan.rank_batches, plan.accumulation, plan.micro_batches(rank=0)
        ([63, 63, 62, 62], 2, [32, 31])
        >>> plan.micro_batches(rank=3, count=2)             # a last batch of 2 leaves nothing for rank 3
        []
    """

    global_batch: int
    num_ranks: int
    reference_batch: Optional[Union[int, Fraction]] = None
    micro_batch: Optional[int] = None

    def __post_init__(self) -> None:
        for name in ("global_batch", "num_ranks", "micro_batch"):
            value = getattr(self, name)
            if value is None and name == "micro_batch":
                continue
            if (as_whole(value) or 0) < 1:
                raise ConfigError(
                    f"BatchPlan({name}={value!r})", "a whole number >= 1", f"pass the number of samples as {name}="
                )
            object.__setattr__(self, name, as_whole(value))
        ref = self.reference_batch
        whole = ref if isinstance(ref, Fraction) else as_whole(ref)
        if ref is not None and (whole or 0) <= 0:
            raise ConfigError(
                f"BatchPlan(reference_batch={ref!r})",
                "a whole number >= 1: the global batch for which the learning rate was tuned",
                "leave it out to scale by the number of ranks",
            )
        object.__setattr__(self, "reference_batch", whole)
        if self.global_batch < self.num_ranks:
            raise ConfigError(
                f"BatchPlan(global_batch={self.global_batch}, num_ranks={self.num_ranks}): some ranks would never get a sample",
                f"a global batch of at least {self.num_ranks}",
                f"raise global_batch, or start {self.global_batch} ranks or fewer",
            )

    @property
    def rank_batches(self) -> list[int]:
        """Samples of each rank in a full step; their sum is the global batch."""
        return split_evenly(self.global_batch, self.num_ranks)

    @property
    def accumulation(self) -> int:
        """Micro-batches of the busiest rank in a full step, >= 1."""
        return len(self.micro_batches(rank=0))

    @property
    def reference(self) -> Fraction:
        """The reference batch in samples; `global_batch / num_ranks` where none was given (exact, maybe fractional)."""
        if self.reference_batch is None:
            return Fraction(self.global_batch, self.num_ranks)
        return Fraction(self.reference_batch)

    @property
    def batch_ratio(self) -> Fraction:
        """Global batch over reference batch: what the learning-rate rules scale by."""
        return self.global_batch / self.reference

    def with_reference(self, reference_batch: Union[int, Fraction]) -> BatchPlan:
        """The same plan with a fixed reference batch (what a resume does)."""
        return replace(self, reference_batch=reference_batch)

    def rank_slice(self, rank: int, count: Optional[int] = None) -> tuple[int, int]:
        """Begin and end of a rank's samples inside a global batch of `count` samples (default: a full one)."""
        shares = split_evenly(self.global_batch if count is None else count, self.num_ranks)
        begin = sum(shares[:rank])
        return begin, begin + shares[rank]

    def micro_batches(self, rank: int, count: Optional[int] = None) -> list[int]:
        """Sizes of a rank's micro-batches in a global batch of `count` samples; [] where the rank has none."""
        begin, end = self.rank_slice(rank, count)
        share = end - begin
        if share == 0:
            return []
        limit = self.micro_batch or share
        return split_evenly(share, -(-share // limit))

    def steps_per_epoch(self, num_samples: int, drop_last: bool = False) -> int:
        """Optimizer steps in one pass over `num_samples`; the last, smaller batch counts unless it is dropped.

        Raises:
            DataError: there are no samples, or fewer than one global batch with `drop_last=True`.

        Example:
            >>> plan = BatchPlan(global_batch=100, num_ranks=2)
            >>> plan.steps_per_epoch(1000), plan.steps_per_epoch(1001), plan.steps_per_epoch(1001, drop_last=True)
            (10, 11, 10)
        """
        if num_samples < 1:
            raise DataError(f"the data set has {num_samples} samples", "at least 1", "check the path or the filter that made it")
        steps = num_samples // self.global_batch if drop_last else -(-num_samples // self.global_batch)
        if steps == 0:
            raise DataError(
                f"the data set has {num_samples} samples, the global batch is {self.global_batch} and drop_last=True drops them all",
                f"at least {self.global_batch} samples, or drop_last=False",
                "lower global_batch or keep the last batch",
            )
        return steps
