"""How a bucket gets from the sums of one rank to the mean of all: by messages of the engine.

A way has one small interface, and the reducer does not know which one it drives; the other is `shared_sums.SharedSums`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Optional

import torch

from hvd_trainer.comm.api import Communicator, Pending
from hvd_trainer.optim.buckets import Bucket

COMPRESSIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
CHUNK_BYTES = 256 * 1024  # what is worked on at a time stays in a core's cache
TAKEN_BYTES = 1 << 20  # smaller gradients are copied while they are in cache, which costs less than new views of them


@dataclass  # not frozen, which makes making one several times as slow: it happens in every step
class Numbers:
    """What a rank reports with its gradients; `finish` returns the sums over all ranks.

    Args:
        total: of the losses.
        ours: 1 where the gradients come from `opt.backward`.
        irregular: 1 where some parameter has no gradient on this rank, or a sparse one.
        aside: 1 where this rank must see whole gradients before the update.
        changed: not 0 where somebody else has written to what the ranks share, or a backward has raised; see `step_errors`.
        rates: stands for this rank's learning rates; see `same_rates`.
    """

    total: float = 0.0
    ours: float = 0.0
    irregular: float = 0.0
    aside: float = 0.0
    changed: float = 0.0
    rates: float = 0.0

    def listed(self) -> list[float]:
        """In the order of the fields."""
        return [self.total, self.ours, self.irregular, self.aside, self.changed, self.rates]


@dataclass
class Sums(Numbers):
    """`Numbers` summed over the ranks.

    Args:
        weight: of the losses; with `plain`, the number of ranks that have gradients.
        plain: ranks whose gradients come from `loss.backward`.
        bad: not 0 where some gradient was NaN or infinite.
    """

    weight: float = 0.0
    plain: float = 0.0
    bad: float = 0.0

    def factor(self, nominal: float) -> float:
        """What makes the mean of the sum, where each rank divided by `nominal` already (but not for plain losses)."""
        return mean_factor(self.weight, self.plain, nominal)


def mean_factor(weight: float, plain: float, nominal: float) -> float:
    """See `Sums.factor`; 1.0 where there is nothing to divide by, which the caller reports.

    Example:
        >>> mean_factor(48.0, 0, 64.0), mean_factor(2.0, 2, 64.0), mean_factor(0.0, 0, 64.0)
        (1.3333333333333333, 0.5, 1.0)
    """
    return (1.0 if plain else nominal) / weight if weight else 1.0


def is_undivided(plain: float, nominal: float) -> bool:
    """Whether gradients go out as backward made them: of plain losses, or before a nominal weight is known.

    Example:
        >>> is_undivided(1.0, 64.0), is_undivided(0.0, 1.0), is_undivided(0.0, 64.0)
        (True, True, False)
    """
    return plain > 0 or nominal == 1.0


class Messages:
    """Buckets travel by `comm.allreduce_`, each as soon as it is sent.

    Args:
        buckets: the same on all ranks.
        comm: the ranks.
        name: prefix of the collectives' names.
        compression: "bf16" or "fp16": wider buckets are rounded to it on this rank, and their sum once more.

    Attributes:
        flat_sets: where this rank's gradients are put, one tensor a bucket; several sets are used in turn, a set a step.
        results: where the means are after `finish`: the same memory.
        results_are_own: nobody else reads or writes the results.
        sends_early: a bucket is worth sending in the middle of a backward.
        moved: buckets that `take` has put into other memory, until whoever holds views of the old one clears it.
    """

    text = "messages"
    results_are_own = True
    sends_early = True

    def __init__(self, buckets: list[Bucket], comm: Communicator, name: str, compression: Optional[str] = None) -> None:
        self.results = [torch.zeros(b.numel, dtype=b.dtype, device=b.device) for b in buckets]
        self.flat_sets = [self.results]
        narrow = COMPRESSIONS.get(compression)
        # What travels: the bucket, or its narrow copy.
        self._wires = [flat if narrow is None or flat.element_size() <= 2 else torch.empty_like(flat, dtype=narrow) for flat in self.results]
        if narrow is not None:
            self.text = f"messages in {compression}"
        self._comm, self._name = comm, name
        self.moved: set[int] = set()
        self._sent: list[Pending] = []
        self._checks: list[torch.Tensor] = []  # one number a sent bucket, not finite where a gradient was not
        self._weight = self._plain = 0.0
        self._nominal = 1.0
        self.was_finite = True

    def announce(self, weight: float, plain: float, nominal: float) -> None:
        """Before the first bucket of a step: this rank's weight, whether its losses were plain, and the nominal weight."""
        self._weight, self._plain, self._nominal = weight, plain, nominal

    def takes(self, number: int) -> bool:
        """Whether the bucket may lie where backward has made its gradient (`take`); the same on all ranks."""
        return self.results[number].nbytes >= TAKEN_BYTES

    def take(self, number: int, flat: torch.Tensor) -> None:
        """From now on the bucket lies in this memory: what travels from there needs no copy."""
        if self._wires[number] is self.results[number]:
            self._wires[number] = flat
        self.results[number] = flat
        self.moved.add(number)

    def send(self, number: int) -> None:
        """This rank's part of the bucket is complete; buckets are sent in order."""
        flat, wire = self.results[number], self._wires[number]
        # While it is in cache: NaN and infinity survive a sum. 16-bit floats are summed in 32 bits.
        self._checks.append(flat.sum(dtype=torch.float32 if flat.element_size() < 4 else None).double())
        # A sum of gradients that were not divided yet is larger than their mean, and may not fit into 16 bits where that does.
        share = 1.0 / self._comm.size if wire.element_size() <= 2 and is_undivided(self._plain, self._nominal) else 1.0
        if wire is not flat:
            torch.mul(flat, share, out=wire)
        elif share != 1.0:
            flat.mul_(share)
        self._sent.append(self._comm.allreduce_(wire, f"{self._name}.bucket{number}"))

    def finish(self, numbers: Numbers) -> Sums:
        """Wait for all buckets, which were all sent; `results` then hold the means."""
        self.was_finite = all(math.isfinite(check) for check in torch.stack(self._checks).tolist())
        mine = [*numbers.listed(), self._weight, self._plain, float(not self.was_finite)]
        last = send_numbers(self._comm, mine, f"{self._name}.numbers")
        for pending in self._sent:
            pending.wait()
        self._sent, self._checks = [], []
        sums = Sums(*last.wait().tolist())
        factor, overflowed = sums.factor(self._nominal), False
        for flat, wire in zip(self.results, self._wires):
            shared = wire.element_size() <= 2 and is_undivided(sums.plain, self._nominal)
            bucket_factor = factor * self._comm.size if shared else factor
            if wire is not flat:
                flat.copy_(wire).mul_(bucket_factor)  # torch.mul(out=flat) would round the product to 16 bits
                overflowed = overflowed or not math.isfinite(flat.sum())
            elif bucket_factor != 1.0:
                flat.mul_(bucket_factor)
        # All ranks hold the same bits, so all find the same.
        return replace(sums, bad=1.0) if overflowed and not sums.bad else sums

    def exchange(self, numbers: list[float], what: str) -> list[float]:
        """The sums over all ranks of further numbers, as many on every rank."""
        return send_numbers(self._comm, numbers, f"{self._name}.{what}").wait().tolist()

    def discard(self) -> None:
        """Wait for what is under way and forget it."""
        for pending in self._sent:
            pending.wait()
        self._sent, self._checks = [], []

    def my_chunks(self, number: int) -> list[torch.Tensor]:
        """All of a bucket's result, in pieces that fit into a core's cache."""
        return chunks_of(self.results[number])

    def my_slice(self, number: int) -> tuple[int, int]:
        """Which part of a bucket this rank updates: all of it."""
        return 0, self.results[number].numel()


def send_numbers(comm: Communicator, numbers: list[float], name: str) -> Pending:
    """A sum over all ranks of some numbers is under way."""
    vector = torch.tensor(numbers, dtype=torch.float64).to(comm.device)
    return comm.allreduce_(vector, name)


def chunks_of(flat: torch.Tensor) -> list[torch.Tensor]:
    """A flat tensor in pieces that fit into a core's cache."""
    return list(flat.split(max(1, CHUNK_BYTES // flat.element_size())))


def all_finite(flats: list[torch.Tensor]) -> bool:
    """Whether no element of any is NaN or infinite."""
    return all(bool(flat.isfinite().all()) for flat in flats)
