"""The parts of a step's time, from measured steps: compute first, then what the steps with communication add."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_trainer.cost import robust
from hvd_trainer.cost.robust import Estimate, Prior
from hvd_trainer.cost.samples import GRADIENT, LOCAL, STEP, StepSample
from hvd_trainer.cost.step_time import Compute, StepTime
from hvd_trainer.errors import ConfigError

SECONDS = (math.log(1e-8), math.log(1e4))
# A knee costs two parameters: it must take away this share of the cost, and have sizes on both sides.
KNEE_GAIN, KNEE_SIZES = 0.5, 5
GAMMA = Prior(1.0, 1.0, 1.0, 10.0)
# Its logarithm. Over several nodes a step sends just the messages that were measured alone; within a node it may go another way.
SYNC_FACTOR = Prior(0.0, 0.3, math.log(0.2), math.log(5.0))
SAME_MESSAGES = Prior(0.0, 0.05, math.log(0.2), math.log(5.0))
Sync = Callable[[int, int], float]


@dataclass(frozen=True)
class FittedStep:
    """A step's model with its uncertainty.

    Args:
        model: the best fit.
        draws: fits to disturbed data.
        scatter: standard deviation of log(measured / fitted).
        micro_batches: smallest and largest that were measured.
    """

    model: StepTime
    draws: tuple[StepTime, ...]
    scatter: float
    micro_batches: tuple[int, int]

    def step(self, micro_batch: float, accumulation: int = 1, sync_s: Sequence[float] = (0.0,)) -> Estimate:
        """Seconds of a step, with the interval.

        Args:
            micro_batch: samples in one forward pass.
            accumulation: micro-batches.
            sync_s: seconds of the messages: the best guess first, then draws of it.
        """
        draws = [
            draw.seconds(micro_batch, accumulation, sync_s[1 + number % (len(sync_s) - 1)] if len(sync_s) > 1 else sync_s[0])
            for number, draw in enumerate(self.draws)
        ]
        return robust.estimate(self.model.seconds(micro_batch, accumulation, sync_s[0]), draws, self.scatter)


def fit_compute(samples: Sequence[StepSample], num_draws: int = 60) -> FittedStep:
    """Compute and update of a rank that talks to nobody.

    Args:
        samples: of kind GRADIENT and LOCAL, at least two micro-batches; without LOCAL the update is 0.
        num_draws: refits for the uncertainty.

    Returns:
        A fit without communication.

    Raises:
        ConfigError: fewer than two micro-batches.

    Example:
        >>> from hvd_trainer.cost.samples import StepSample
        >>> true = StepTime(Compute(0.01, 0.001), 0.002)
        >>> samples = [StepSample("local step", m, 1, 1, 1, (true.seconds(m),)) for m in (8, 16, 64)]
        >>> samples += [StepSample("gradient", m, 1, 1, 1, (true.compute.seconds(m),)) for m in (8, 16, 64)]
        >>> found = fit_compute(samples, num_draws=2).model
        >>> round(found.compute.fixed_s, 4), round(found.compute.sample_s, 5), round(found.update_s, 4)
        (0.01, 0.001, 0.002)
    """
    samples = [sample for sample in samples if sample.kind in (GRADIENT, LOCAL)]
    sizes = sorted({sample.micro_batch for sample in samples})
    if len(sizes) < 2:
        raise ConfigError(
            f"compute was measured for micro-batches {sizes or 'none'}", "at least two sizes", "measure two or more, such as 8 and 32"
        )
    best, knee = _fit_compute(samples, 0.0, num_draws), 0.0
    if len(sizes) >= KNEE_SIZES:
        for middle in sizes[2:-2]:
            tried = _fit_compute(samples, float(middle), 0)
            if tried.cost < KNEE_GAIN * best.cost:
                best, knee = tried, float(middle)
        if knee:
            best = _fit_compute(samples, knee, num_draws)
    return FittedStep(
        _local(best.theta, knee), tuple(_local(draw, knee) for draw in best.draws), best.scatter, (sizes[0], sizes[-1])
    )


def _fit_compute(samples: Sequence[StepSample], knee: float, num_draws: int) -> robust.Fitted:
    typical = np.array([sample.typical_s for sample in samples])
    smallest = min(samples, key=lambda s: s.typical_s).typical_s
    per_sample = min(s.typical_s / (s.micro_batch * s.accumulation) for s in samples)
    priors = [
        Prior(math.log(smallest / 2), 3.0, *SECONDS),
        Prior(math.log(per_sample), 2.0, *SECONDS),
        Prior(math.log(smallest / 10), 3.0, *SECONDS),
        # The slope beyond the knee over the slope before it.
        *([Prior(0.0, 1.0, math.log(0.05), math.log(20.0))] if knee else []),
    ]
    if not any(sample.kind == LOCAL for sample in samples):
        priors[2] = Prior(SECONDS[0] + 1.0, 1e-3, *SECONDS)

    def predict(theta: np.ndarray) -> np.ndarray:
        model = _local(theta, knee)
        return np.array(
            [
                model.seconds(s.micro_batch, s.accumulation) - (model.update_s if s.kind == GRADIENT else 0.0)
                for s in samples
            ]
        )

    return robust.fit(predict, typical, priors, num_draws)


def _local(theta: np.ndarray, knee: float) -> StepTime:
    fixed_s, sample_s, update_s = np.exp(theta[:3])
    beyond_s = float(sample_s * (math.exp(theta[3]) - 1)) if knee else 0.0
    return StepTime(Compute(float(fixed_s), float(sample_s), knee, beyond_s), float(update_s))


def fit_overlap(
    local: FittedStep, samples: Sequence[StepSample], sync_s: Sync, num_draws: int = 60, same_messages: bool = False
) -> FittedStep:
    """What steps with communication add to `local`: overlap, and messages that cost more or less within a step.

    Args:
        local: from `fit_compute`.
        samples: of kind STEP with more than one rank; none: one after the other, as if measured alone.
        sync_s: `(nodes, ranks_per_node) -> seconds` of the messages of a step, from the link model.
        num_draws: refits for the uncertainty.
        same_messages: a step is known to send just those messages, so that their time within it is looked for nearby.

    Example:
        >>> from hvd_trainer.cost.samples import StepSample
        >>> true = StepTime(Compute(0.01, 0.001), 0.002, gamma=3.0)
        >>> local = FittedStep(StepTime(true.compute, 0.002), (), 0.0, (8, 64))
        >>> samples = [StepSample("step", m, 1, n, 1, (true.seconds(m, 1, 0.02 * n),)) for m in (8, 16, 64) for n in (1, 2, 3)]
        >>> 2.5 < fit_overlap(local, samples, lambda n, r: 0.02 * n, num_draws=2).model.gamma < 3.5
        True
    """
    samples = [sample for sample in samples if sample.kind == STEP]
    if not samples:
        return local
    typical = [sample.typical_s for sample in samples]
    alone_s = np.array([sync_s(sample.nodes, sample.ranks_per_node) for sample in samples])

    # The update is fitted again around what one rank needs: a sharded one costs less, hooks and checks cost more.
    update = Prior(math.log(max(local.model.update_s, 1e-7)), 1.0, *SECONDS)

    def model_of(theta: np.ndarray, base: StepTime) -> StepTime:
        return StepTime(base.compute, float(np.exp(theta[0])), float(theta[1]), float(np.exp(theta[2])))

    def predict(theta: np.ndarray) -> np.ndarray:
        model = model_of(theta, local.model)
        return np.array([model.seconds(s.micro_batch, s.accumulation, sync) for s, sync in zip(samples, alone_s)])

    found = robust.fit(predict, typical, [update, GAMMA, SAME_MESSAGES if same_messages else SYNC_FACTOR], num_draws)
    bases = local.draws or (local.model,)
    draws = tuple(model_of(draw, bases[number % len(bases)]) for number, draw in enumerate(found.draws))
    sizes = [sample.micro_batch for sample in samples]
    return FittedStep(
        model_of(found.theta, local.model),
        draws,
        max(found.scatter, local.scatter),
        (min(local.micro_batches[0], *sizes), max(local.micro_batches[1], *sizes)),
    )
