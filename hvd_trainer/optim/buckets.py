"""Pure: which parameter's gradient lies where in which flat buffer. No tensors, no communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# As large as stays in a core's cache while it is copied, reduced and scaled (65,536 floats).
DEFAULT_BUCKET_BYTES = 256 * 1024


@dataclass(frozen=True)
class ParamSpec:
    """What ranks must agree on about one parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    group: int = 0
    strides: tuple[int, ...] = ()

    @property
    def wire_dtype(self) -> torch.dtype:
        """The dtype of the flat buffer: complex numbers travel as pairs of reals."""
        return self.dtype.to_real() if self.dtype.is_complex else self.dtype

    @property
    def wire_numel(self) -> int:
        numel = 1
        for size in self.shape:
            numel *= size
        return 2 * numel if self.dtype.is_complex else numel


@dataclass(frozen=True)
class Slot:
    """One parameter's place: `flat[offset : offset + numel]` of its bucket."""

    param: int
    offset: int
    numel: int


@dataclass(frozen=True)
class Bucket:
    """One flat buffer and the parameters whose gradients lie in it."""

    dtype: torch.dtype
    device: torch.device
    slots: tuple[Slot, ...]
    group: int = 0

    @property
    def numel(self) -> int:
        return sum(slot.numel for slot in self.slots)

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


def plan_buckets(params: Sequence[ParamSpec], bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> list[Bucket]:
    """Group parameters into buckets in the order in which backward finishes them.

    Backward meets the last layer first, so parameters are taken from the end. A bucket holds one dtype on one device, of one param group; a
    parameter is never cut, so one that is larger than `bucket_bytes` has a bucket to itself. Buckets are numbered by
    the moment their last gradient is expected, because they are sent in that order on all ranks.

    Args:
        params: in the order of the model; the same on all ranks.
        bucket_bytes: size at which a bucket is closed, >= 1.

    Returns:
        Buckets that hold every parameter exactly once.

    Example:
        >>> f32 = lambda *shape: ParamSpec("w", shape, torch.float32, torch.device("cpu"))
        >>> [[s.param for s in b.slots] for b in plan_buckets([f32(4), f32(4), f32(4)], bucket_bytes=32)]
        [[2, 1], [0]]
    """
    closed: list[tuple[int, Bucket]] = []
    open_slots: dict[tuple[torch.dtype, torch.device, int], list[Slot]] = {}
    filled: dict[tuple[torch.dtype, torch.device, int], int] = {}

    def close(key: tuple[torch.dtype, torch.device, int]) -> None:
        slots = tuple(open_slots.pop(key))
        closed.append((-slots[-1].param, Bucket(params[slots[0].param].wire_dtype, key[1], slots, key[2])))

    for index in reversed(range(len(params))):
        spec = params[index]
        key = (spec.dtype, spec.device, spec.group)  # complex apart from real: its pairs must not start at an odd place
        capacity = max(1, bucket_bytes // spec.wire_dtype.itemsize)
        if key in open_slots and filled[key] + spec.wire_numel > capacity:
            close(key)
        if key not in open_slots:
            open_slots[key], filled[key] = [], 0
        open_slots[key].append(Slot(index, filled[key], spec.wire_numel))
        filled[key] += spec.wire_numel
    for key in list(open_slots):
        close(key)
    return [bucket for _, bucket in sorted(closed, key=lambda item: item[0])]
