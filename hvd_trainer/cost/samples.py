"""What was measured, as it is kept in a file: times of allreduces and of steps, each with the place it was measured in."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hvd_trainer.errors import ConfigError

FORMAT = 1
ALLREDUCE, SEND = "allreduce", "send"
GRADIENT, LOCAL, STEP = "gradient", "local step", "step"


@dataclass(frozen=True)
class MessageSample:
    """Repeated times of one sequence of messages.

    Args:
        kind: ALLREDUCE; or SEND: a broadcast between two ranks, which goes in one direction only.
        sizes: bytes of the messages, all sent before the first is waited for.
        nodes, ranks_per_node: where.
        seconds: one for each repetition; of the slowest rank.
    """

    kind: str
    sizes: tuple[int, ...]
    nodes: int
    ranks_per_node: int
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "seconds", tuple(self.seconds))
        check_times(self.seconds, f"{self.kind} of {sum(self.sizes)} B")

    @property
    def typical_s(self) -> float:
        """The median: what somebody would see."""
        return statistics.median(self.seconds)

    @property
    def undisturbed_s(self) -> float:
        """The lower quartile, for fits: what else runs on the machine only ever makes a message slower.

        Example:
            >>> MessageSample("allreduce", (8,), 1, 2, (1.5, 1.0, 1.4, 1.1, 1.6)).undisturbed_s
            1.1
        """
        return sorted(self.seconds)[(len(self.seconds) - 1) // 4]


@dataclass(frozen=True)
class StepSample:
    """Repeated times of one kind of step.

    Args:
        kind: GRADIENT: forward and backward of one micro-batch; LOCAL: a whole step of a rank that talks to nobody;
            STEP: a whole step with its communication.
        micro_batch: samples in one forward pass, >= 1.
        accumulation: micro-batches in the step, >= 1.
        nodes, ranks_per_node: the ranks that did so at the same time.
        seconds: one for each repetition.
    """

    kind: str
    micro_batch: int
    accumulation: int
    nodes: int
    ranks_per_node: int
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", tuple(self.seconds))
        check_times(self.seconds, f"{self.kind} of {self.micro_batch}")

    @property
    def typical_s(self) -> float:
        """The median."""
        return statistics.median(self.seconds)


def check_times(seconds: Sequence[float], what: str) -> None:
    """A clock that stood still, or nothing at all, cannot be fitted in relative error."""
    if not seconds or not all(0 < s < float("inf") for s in seconds):
        raise ConfigError(f"times of {what}: {list(seconds)[:5]}", "at least one, all > 0 and finite", "measure again")


@dataclass(frozen=True)
class Measurements:
    """Everything that a prediction starts from.

    Args:
        workload: name of the model that was trained.
        engine, backend: of the Communicator.
        buckets: bytes of the messages that a step reduces, in the order of sending.
        messages, steps: the samples.
        about: machine, versions, load: for the reader, not for the fit.
    """

    workload: str
    engine: str
    backend: str
    buckets: tuple[int, ...]
    messages: tuple[MessageSample, ...] = ()
    steps: tuple[StepSample, ...] = ()
    about: tuple[dict[str, Any], ...] = field(default=(), hash=False)

    def as_json(self) -> str:
        """For a file."""
        return json.dumps({"format": FORMAT, **asdict(self)})

    @staticmethod
    def from_json(text: str, source: str = "the text") -> Measurements:
        """Back from a file.

        Args:
            text: what `as_json` gave, alone or as "measurements" of a record.
            source: its name in messages.

        Raises:
            ConfigError: it is something else.

        Example:
            >>> one = Measurements("mlp", "mpi", "mpi", (1024,), (MessageSample("allreduce", (8,), 1, 2, (1e-6,)),))
            >>> Measurements.from_json(one.as_json()) == one
            True
        """
        try:
            read = json.loads(text)
            read = read.get("measurements", read)
            if read.pop("format") != FORMAT:
                raise ValueError("format")
            messages = tuple(MessageSample(**sample) for sample in read.pop("messages"))
            steps = tuple(StepSample(**sample) for sample in read.pop("steps"))
            buckets, about = tuple(read.pop("buckets")), tuple(read.pop("about"))
            return Measurements(buckets=buckets, about=about, messages=messages, steps=steps, **read)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"{source} holds no measurements ({type(error).__name__}: {error})",
                f"a record of `hvd-trainer bench predict`, format {FORMAT}",
                "measure again, and give the JSON file that it writes",
            ) from None

    @staticmethod
    def read(path: Path) -> Measurements:
        """From a file."""
        return Measurements.from_json(path.read_text(), str(path))


def merged(parts: Sequence[Measurements]) -> Measurements:
    """Several launches as one: more nodes, more ranks, or the same again: then the repetitions are put together.

    Args:
        parts: of one model; of one engine, but for those of a single rank, which has no use for any.

    Raises:
        ConfigError: none, or they are of different models or engines.

    Example:
        >>> merged([Measurements("mlp", "mpi", "mpi", (8,)), Measurements("cnn", "mpi", "mpi", (8,))])
        Traceback (most recent call last):
        ...
        hvd_trainer.errors.ConfigError: measurements of workload mlp and cnn
          allowed: files of one workload, engine, backend and bucket plan
          fix:     give only those that belong together
    """
    if not parts:
        raise ConfigError("no measurements", "at least one file", "--from-json FILE")
    first = next((part for part in parts if part.engine != "single"), parts[0])
    for part in parts:
        for name in ("workload", "buckets", *(() if part.engine == "single" else ("engine", "backend"))):
            if getattr(part, name) != getattr(first, name):
                raise ConfigError(
                    f"measurements of {name} {getattr(first, name)} and {getattr(part, name)}",
                    "files of one workload, engine, backend and bucket plan",
                    "give only those that belong together",
                )
    return Measurements(
        first.workload,
        first.engine,
        first.backend,
        first.buckets,
        _pooled(sample for part in parts for sample in part.messages),
        _pooled(sample for part in parts for sample in part.steps),
        tuple(line for part in parts for line in part.about),
    )


def _pooled(samples: Iterable[Any]) -> tuple[Any, ...]:
    """One sample for each thing that was timed, with the repetitions of all launches."""
    found: dict[Any, Any] = {}
    for sample in samples:
        key = replace(sample, seconds=(1.0,))
        before = found.get(key)
        found[key] = sample if before is None else replace(before, seconds=before.seconds + sample.seconds)
    return tuple(found.values())
