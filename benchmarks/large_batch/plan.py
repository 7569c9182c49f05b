"""What the proof trains: batches, rates, caps, and the job of each part (pure)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.large_batch.cells import Cell, Row
from hvd_trainer.optim.noise import gain
from hvd_trainer.optim.noise_rule import NoiseRule
from hvd_trainer.optim.scaling import Linear, Sqrt

TARGET = 0.42
BATCHES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
NOISE_BATCHES = {"mlp": (64, 256, 1024), "cnn": (32, 128, 512)}
DIVISION_LR = 0.1  # at the tuned rate, near the edge of stability, the last digits of float32 grow tenfold in these steps
MAIN_BATCH = 256  # of the one run that everything is predicted from, and whose rate is scaled (of the CNN: the nearest)
SMALL_BASE = 32  # where people tune who scale up
SEEDS = (0, 1)
PARTS_A_RANK = 4  # micro-batches of a noise run: with 2 ranks 8 gradients a step are compared
RULES = ("noise rule", "linear", "sqrt")
TIMED, HELD_OUT = (16, 64, 256, 1024, 4096), (32, 128, 512, 2048)
DIVISIONS = ((1, None), (2, None), (2, 32))  # ranks, micro-batch: 1 x 256, 2 x 128, 2 x (4 x 32)
DIVISION_STEPS = 50


@dataclass(frozen=True)
class Family:
    """An optimizer's row of the grid, from trials beforehand: only a middle to begin from, and the steps that caps are multiples of.

    Args:
        optimizer, momentum: which.
        smallest_steps, critical_batch: a hyperbola that is not far off.
        top_rate: where the rate goes for large batches.
        power: 1: the rate falls with the gain, 0.5: with its root.
        factor: of neighbouring rates.
        batches, seeds: of the grid.
    """

    optimizer: str
    momentum: float
    smallest_steps: float
    critical_batch: float
    top_rate: float
    power: float
    factor: float
    batches: tuple[int, ...]
    seeds: tuple[int, ...]
    model: str = "mlp"
    cap_times: float = 5.0

    def predicted(self, batch: int) -> float:
        """Steps to the target, roughly."""
        return self.smallest_steps * (1 + self.critical_batch / batch)

    def rate(self, batch: int) -> float:
        """A rate that is not far off."""
        return self.top_rate / gain(self.critical_batch, batch, 1e9) ** self.power

    def row(self, batch: int) -> Row:
        """The batch's row: four rates to begin with, two below the middle and one above, for upwards lies divergence."""
        return Row(self.cell(batch), self.top_rate, self.factor, (middle := self._middle(batch)) - 2, middle + 1, self.seeds)

    def _middle(self, batch: int) -> int:
        return round(math.log(self.rate(batch) / self.top_rate) / math.log(self.factor))

    def cell(self, batch: int, lr: float = 0.0, seed: int = 0, **more: Any) -> Cell:
        """A cell of this family with caps that fit it."""
        predicted = self.predicted(batch)
        cap, first = math.ceil(self.cap_times * predicted), max(10, math.floor(0.35 * predicted))
        return Cell(batch, lr, seed, cap, self.optimizer, self.momentum, self.model, first_check=first, **more)


SGD = Family("sgd", 0.0, 165, 150, 0.4, 1.0, 1.5, BATCHES, SEEDS)
OTHERS = (
    Family("sgd", 0.9, 110, 220, 0.06, 1.0, 2.0, (16, 64, 256, 1024, 4096), (0,)),
    Family("adamw", 0.0, 90, 220, 3e-3, 0.5, 2.0, (16, 64, 256, 1024, 4096), (0,)),
    Family("lamb", 0.0, 90, 220, 2e-2, 0.5, 2.0, (16, 64, 256, 1024, 4096), (0,)),
)
CNN = Family("sgd", 0.0, 220, 40, 0.4, 1.0, 1.8, (32, 128, 512), (0,), model="cnn")


def quick(family: Family) -> Family:
    """Few cells, for trying."""
    return replace(family, batches=family.batches if family.model == "cnn" else (64, 256, 1024), seeds=(0,))


def name_of(cell: Mapping[str, Any]) -> str:
    """An optimizer as the tables call it.

    Example:
        >>> name_of({"optimizer": "sgd", "momentum": 0.9}), name_of({"optimizer": "lamb", "momentum": 0.0})
        ('sgd, momentum 0.9', 'lamb')
    """
    return f"{cell['optimizer']}, momentum {cell['momentum']:g}" if cell["momentum"] else cell["optimizer"]


def grid_job(families: Sequence[Family]) -> dict[str, Any]:
    """All rows of all families."""
    return job([family.row(batch) for family in families for batch in family.batches])


def job(rows: Sequence[Row] = (), cells: Sequence[Cell] = (), times: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the worker reads, without the place."""
    return {"rows": [asdict(row) for row in rows], "cells": [asdict(cell) for cell in cells], "times": dict(times or {})}


def noise_cells(family: Family, batches: Sequence[int], best: Mapping[int, Mapping[str, Any]], seeds: Sequence[int]) -> list[Cell]:
    """Runs on two ranks with micro-batches at the grid's best rate: they measure the noise, and repeat cells of one rank.

    Args:
        family: which.
        batches: one run each, and each seed.
        best: {batch: row's best}; a batch that is not there gets the family's own rate.
        seeds: of the runs.
    """
    return [
        family.cell(batch, best[batch]["lr"] if batch in best else family.rate(batch), seed, ranks=2, micro_batch=batch // (2 * PARTS_A_RANK), noise=True)
        for batch in batches
        for seed in seeds
    ]


def rule_rates(noise_scale: float, base_batch: int, base_lr: float, batches: Sequence[int]) -> dict[str, dict[int, float]]:
    """What each rule makes of one tuned rate.

    Example:
        >>> found = rule_rates(200.0, 256, 0.3, (64, 1024))
        >>> {rule: [round(rate, 3) for rate in rates.values()] for rule, rates in found.items()}
        {'noise rule': [0.13, 0.447], 'linear': [0.075, 1.2], 'sqrt': [0.15, 0.6]}
    """
    rules = {"noise rule": NoiseRule(noise_scale), "linear": Linear(), "sqrt": Sqrt()}
    return {name: {batch: base_lr * rule.factor(batch, base_batch) for batch in batches} for name, rule in rules.items()}


def rule_cells(rates: Mapping[str, Mapping[int, float]], seeds: Sequence[int]) -> list[Cell]:
    """Trainings at the rules' rates: the noise rule with every seed, the others with the first."""
    return [
        SGD.cell(batch, float(f"{lr:.4g}"), seed)
        for rule, by_batch in rates.items()
        for batch, lr in by_batch.items()
        for seed in (seeds if rule == "noise rule" else seeds[:1])
    ]


def division_cells() -> list[Cell]:
    """One batch divided in three ways."""
    return [Cell(MAIN_BATCH, DIVISION_LR, 0, DIVISION_STEPS, first_check=DIVISION_STEPS, ranks=ranks, micro_batch=micro) for ranks, micro in DIVISIONS]
