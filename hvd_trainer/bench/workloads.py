"""What is trained in a measurement, by name; their models are in `models`, which loads torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hvd_trainer.errors import ConfigError

RANK_BATCH = 32


@dataclass(frozen=True)
class Workload:
    """One model with its data and optimizer.

    Args:
        name: as on the command line.
        about: half a sentence for the table.
        steps: timed steps in one launch; a number for each workload, for all ranks and columns must do the same ones.
        warmup: steps before, whose losses are compared between the columns.
        script: a user's file with `make()`; "" for the built-in ones.
        rank_batch: samples of each rank in a step.
        global_batch: samples of all ranks together, divided as evenly as it goes, instead of `rank_batch`; 0: not so.
        model: name of the built-in model, where it is not the workload's own.
    """

    name: str
    about: str
    steps: int = 32
    warmup: int = 8
    script: str = ""
    rank_batch: int = RANK_BATCH
    global_batch: int = 0
    model: str = ""

    def samples(self, rank: int, num_ranks: int) -> int:
        """How many samples a rank has in a step.

        Example:
            >>> [Workload("a", "", global_batch=32).samples(rank, 3) for rank in range(3)]
            [11, 11, 10]
        """
        if not self.global_batch:
            return self.rank_batch
        each, more = divmod(self.global_batch, num_ranks)
        return each + (rank < more)


# Steps: about 2 to 3 s a column; the mlp, whose step is a tenth of a tick of the scheduler, less, but most steps.
BUILT_IN = (
    Workload("mlp", "64-128-128-10", steps=600, warmup=100),
    Workload("cnn", "6 double 3x3 conv blocks with BN, 16 to 64 channels, 28x28", steps=48),
    Workload("transformer", "encoder, 6 layers, width 128, ff 512, length 32", steps=24),
    Workload("wide", "mlp 512-4096-4096-10", steps=24),
)
# Chains of square layers without bias: the number of parameters, and of tensors, is exact.
SWEEP = (
    Workload("params-1e5", "10 layers of 100x100", steps=400, warmup=50),
    Workload("params-1e6", "10 layers of 316x316", steps=200, warmup=20),
    Workload("params-1e7", "10 layers of 1000x1000", steps=40),
    Workload("params-1e8", "10 layers of 3162x3162", steps=8, warmup=4),
    Workload("tensors-10", "10 layers of 320x320", steps=200, warmup=20),
    Workload("tensors-1000", "1000 layers of 32x32", steps=40),
)
BY_NAME = {workload.name: workload for workload in (*BUILT_IN, *SWEEP)}


def choose(names: tuple[str, ...], script: str | None = None, sweep: bool = False, steps: int | None = None) -> list[Workload]:
    """The workloads that were asked for.

    Args:
        names: of built-in ones; none, no script and no sweep: the four of `BUILT_IN`.
        script: a user's file.
        sweep: those of `SWEEP`.
        steps: timed steps in one launch, at least 8, instead of each workload's own.

    Raises:
        ConfigError: an unknown name, too few steps, or a script that is no file.

    Example:
        >>> [w.name for w in choose(())]
        ['mlp', 'cnn', 'transformer', 'wide']
        >>> choose(("mlp",), steps=40)[0].steps
        40
    """
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise ConfigError(f"workload {unknown[0]!r}", ", ".join(BY_NAME), "or your own: --script FILE with make()")
    if steps is not None and steps < 8:
        raise ConfigError(f"--steps {steps}", "8 or more", "a median of fewer says little")
    chosen = [BY_NAME[name] for name in names]
    if sweep:
        chosen.extend(SWEEP)
    if script is not None:
        if not Path(script).is_file():
            raise ConfigError(f"--script {script} is not a file", "a Python file with make()", "see docs/bench.md")
        chosen.append(Workload(Path(script).stem, "the user's script", script=str(Path(script).resolve())))
    chosen = chosen or list(BUILT_IN)
    if steps is None:
        return chosen
    return [replace(workload, steps=steps, warmup=min(workload.warmup, steps)) for workload in chosen]
