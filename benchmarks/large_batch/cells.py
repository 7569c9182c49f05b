"""What is trained: single runs (cells), rows of cells over the rate, and when a row is complete (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

MET, CAP, DIVERGED = "met", "cap reached", "diverged"
GROWTH = 1.05  # the next look at the validation set comes after this many times the steps
DIVERGED_AT = 10.0  # times the loss before the first step
MOST_RATES = 10  # of a row: then it is left as it is, and the page says that its best is on the edge


@dataclass(frozen=True)
class Cell:
    """One training, from the first step to the target or the cap.

    Args:
        batch: global batch.
        lr: peak rate.
        seed: of the weights and of the order of the samples.
        cap: steps, where it ends without the target.
        optimizer: a name for `ht.make_optimizer`.
        momentum: of "sgd".
        model: "mlp" or "cnn".
        warmup_samples: 0: none.
        warmup_from: where the warm-up begins, as a share of the peak.
        first_check: step of the first look at the validation set.
        ranks: 1: any rank alone; 2: all together.
        micro_batch: None: the rank's batch at once.
        noise: measure the noise scale along.
    """

    batch: int
    lr: float
    seed: int
    cap: int
    optimizer: str = "sgd"
    momentum: float = 0.0
    model: str = "mlp"
    warmup_samples: int = 0
    warmup_from: float = 0.0
    first_check: int = 20
    ranks: int = 1
    micro_batch: Optional[int] = None
    noise: bool = False

    @property
    def key(self) -> str:
        """Names it among the results."""
        parts = (self.model, self.optimizer, self.momentum, self.batch, f"{self.lr:.6g}", self.seed, self.warmup_samples, self.ranks, self.micro_batch, self.noise)
        return "/".join(map(str, parts))


@dataclass(frozen=True)
class Row:
    """One batch over a lattice of rates `unit * factor^k`.

    Args:
        cell: what its cells have in common; its `lr` and `seed` are not used.
        unit, factor: of the lattice.
        first, last: exponents to begin with; the row grows until its best is inside.
        seeds: each rate is run with all of them.
    """

    cell: Cell
    unit: float
    factor: float
    first: int
    last: int
    seeds: tuple[int, ...]

    def at(self, exponent: int, seed: int) -> Cell:
        """The cell of a rate and a seed."""
        return Cell(**{**asdict(self.cell), "lr": float(f"{self.unit * self.factor**exponent:.4g}"), "seed": seed})

    def wanted(self, results: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
        """The cells that are there to be run, or have been, as far as the results so far tell.

        Args:
            results: {key of a cell: its result}.

        Example:
            >>> row = Row(Cell(64, 0.0, 0, cap=100), 0.1, 2.0, 0, 3, (0,))
            >>> [cell.lr for cell in row.wanted({})]
            [0.1, 0.2, 0.4, 0.8]
            >>> found = {cell.key: {"outcome": "met", "steps": 50 + number} for number, cell in enumerate(row.wanted({}))}
            >>> [cell.lr for cell in row.wanted(found)]                     # the lowest is best: one more below
            [0.05, 0.1, 0.2, 0.4, 0.8]
        """
        first, last = self.first, self.last
        while last - first + 1 < MOST_RATES:
            cells = {k: [self.at(k, seed) for seed in self.seeds] for k in range(first, last + 1)}
            if not all(cell.key in results for row in cells.values() for cell in row):
                break
            steps = {k: mean_steps([results[cell.key] for cell in row]) for k, row in cells.items()}
            best = min(steps, key=lambda k: steps[k])
            if not math.isfinite(steps[best]):
                # Nowhere met: too high if the lowest rate diverged, too low if the highest did not.
                lowest_diverged = any(results[cell.key]["outcome"] == DIVERGED for cell in cells[first])
                first, last = (first - 1, last) if lowest_diverged else (first, last + 1)
            elif best == first:
                first -= 1
            elif best == last:
                last += 1
            else:
                break
        return [self.at(k, seed) for k in range(first, last + 1) for seed in self.seeds]


def mean_steps(results: Iterable[Mapping[str, Any]]) -> float:
    """Geometric mean of the steps to the target; infinite where one did not get there.

    Example:
        >>> mean_steps([{"outcome": "met", "steps": 100}, {"outcome": "met", "steps": 400}]), mean_steps([{"outcome": "cap reached", "steps": 9}])
        (200.0, inf)
    """
    results = list(results)
    if not results or any(result["outcome"] != MET for result in results):
        return math.inf
    return round(math.exp(math.fsum(math.log(result["steps"]) for result in results) / len(results)), 6)


def best_of_row(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rate and steps of a row's best, and how its grid lies around it.

    Args:
        results: of one batch and one optimizer, at least one.

    Returns:
        lr, steps (geometric mean over the seeds), each seed's steps, whether it is on the edge of the grid, how many times the
        steps the cap was, and the coarsest distance of two looks at the validation set in steps.

    Example:
        >>> row = [{"lr": lr, "seed": 0, "outcome": "met", "steps": steps, "cap": 400, "gap": 0.04} for lr, steps in ((1, 120), (2, 100), (4, 110))]
        >>> best_of_row(row)
        {'lr': 2, 'steps': 100.0, 'by_seed': [100], 'on_edge': False, 'cap_over_best': 4.0, 'gap': 0.04}
    """
    rates = sorted({result["lr"] for result in results})
    steps = {lr: mean_steps([result for result in results if result["lr"] == lr]) for lr in rates}
    best = min(rates, key=lambda lr: steps[lr])
    mine = sorted((result for result in results if result["lr"] == best), key=lambda result: result["seed"])
    return {
        "lr": best,
        "steps": steps[best],
        "by_seed": [result["steps"] for result in mine],
        "on_edge": best in (rates[0], rates[-1]),
        "cap_over_best": min(result["cap"] for result in mine) / steps[best],
        "gap": max((result["gap"] for result in mine if result["gap"] is not None), default=None),
    }


def cost_of(cell: Cell) -> float:
    """How long it takes, in no unit: for the order and for the time left. A look at the validation set is 10,000 samples forward."""
    return cell.cap * (60.0 + cell.batch) + 40 * 3_500
