"""The table of `hvd-trainer bench predict`, and the lines around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_trainer.bench.predict import MEASURED, Forecast, Row
from hvd_trainer.bench.stats import significant

if TYPE_CHECKING:
    from rich.table import Table


def table(forecast: Forecast, rows: Sequence[Row]) -> Table:
    """One row a number of ranks; what was not measured at this size says so in its last column."""
    from rich import box
    from rich.table import Table

    found = forecast.measurements
    title = f"{found.workload}: predicted step, engine {found.engine}, backend {found.backend}, {sum(found.buckets):,} bytes a step"
    drawn = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    for name in ("ranks", "nodes x ranks", "micro x acc.", "ms a step (95 %)", "compute", "messages", "efficiency (95 %)", "samples/s"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("basis", no_wrap=True)
    for row in rows:
        drawn.add_row(
            str(row.ranks),
            f"{row.nodes} x {row.ranks_per_node}",
            f"{row.micro_batch} x {row.accumulation}",
            spread(row.step, 1e3),
            significant(row.compute_s * 1e3),
            significant(row.sync.value * 1e3),
            spread(row.efficiency, 1.0, 2),
            f"{row.samples_per_s:,.0f}",
            row.basis,
            style=None if row.basis == MEASURED else "italic",
        )
    return drawn


def spread(estimate: Any, unit: float, digits: int = 3) -> str:
    """Value and interval.

    Example:
        >>> from hvd_trainer.cost.robust import Estimate
        >>> spread(Estimate(0.01, 0.009, 0.0123), 1e3)
        '10.0 (9.00..12.3)'
    """
    value, low, high = (significant(x * unit, digits) for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}..{high})"


def notes(forecast: Forecast) -> list[str]:
    """What was fitted, in words."""
    links = forecast.links
    lines = []
    if links.model.inside is not None:
        lines.append(f"inside a node: {links.model.inside}")
    if links.model.between is not None:
        how = "assumed, not measured" if links.assumed else f"measured on {', '.join(map(str, links.nodes))} nodes"
        lines.append(f"between nodes: {links.model.between} ({how})")
    lines.append(f"allreduce: {links.model.policy}; residuals {links.scatter:.0%}")
    local = forecast.local
    knee = f", another slope from {local.model.compute.knee:g} on" if local.model.compute.knee else ""
    lines.append(
        f"compute: {significant(local.model.compute.fixed_s * 1e3)} ms + {significant(local.model.compute.sample_s * 1e3)} ms a sample"
        f"{knee}, update {significant(local.model.update_s * 1e3)} ms; residuals {local.scatter:.0%}"
    )
    several = any(nodes > 1 for nodes, _ in forecast.places)
    model = forecast.steps[several].model
    lines.append(
        f"step over {'several nodes' if several else 'one node'}: overlap exponent {model.gamma:.2g} (1: none), "
        f"messages take {model.sync_factor:.2g}x of what they take alone"
    )
    return lines
