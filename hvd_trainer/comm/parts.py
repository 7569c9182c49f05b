"""What is installed, and which devices this process sees: what the choice of an engine rests on."""

from __future__ import annotations

import importlib.util
from typing import Protocol


class Parts(Protocol):
    """What is installed; asked only as far as the choice needs it, for each answer loads libraries."""

    def mpi_problem(self) -> str:
        """Why mpi4py cannot be used; "" where it can."""

    def horovod_installed(self) -> bool:
        """Whether there is a package of that name."""

    def horovod_problem(self) -> str:
        """Why Horovod cannot be used; "" where it can."""

    def horovod_backends(self) -> frozenset[str]:
        """Which of nccl, mpi and gloo it was built with."""

    def torch_backends(self) -> frozenset[str]:
        """Which of nccl and gloo torch.distributed was built with."""

    def gpus(self) -> int:
        """CUDA devices that this process sees."""

    def own_gpu(self) -> bool:
        """Whether CUDA_VISIBLE_DEVICES shows this process one device, as schedulers do for each task."""


class InstalledParts:
    """The real answers. Nothing here initialises MPI, Horovod or CUDA."""

    def mpi_problem(self) -> str:
        from hvd_trainer.comm import mpi

        try:
            mpi.load()
        except (ImportError, RuntimeError, OSError) as error:
            return (
                f"mpi4py does not work ({first_line(error)})" if module_exists("mpi4py") else "mpi4py is not installed"
            )
        return ""

    def horovod_installed(self) -> bool:
        return module_exists("horovod")

    def horovod_problem(self) -> str:
        from hvd_trainer.comm import horovod

        if not self.horovod_installed():
            return "Horovod is not installed"
        try:
            horovod.load()
        except (ImportError, RuntimeError, OSError) as error:
            return f"Horovod does not load ({first_line(error)})"
        return ""

    def horovod_backends(self) -> frozenset[str]:
        from hvd_trainer.comm import horovod

        if self.horovod_problem():
            return frozenset()
        hvd = horovod.load()
        return frozenset(name for name in ("nccl", "mpi", "gloo") if getattr(hvd, f"{name}_built")())

    def torch_backends(self) -> frozenset[str]:
        from hvd_trainer.comm import process_group

        return process_group.backends()

    def gpus(self) -> int:
        import torch

        return torch.cuda.device_count()

    def own_gpu(self) -> bool:
        from hvd_trainer import env

        shown = env.visible_devices(env.snapshot())
        return bool(shown) and "," not in shown


def module_exists(name: str) -> bool:
    """Whether a top-level module could be imported, without importing it."""
    return importlib.util.find_spec(name) is not None


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
