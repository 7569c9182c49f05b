"""Data-parallel training of PyTorch models under horovodrun, mpirun or SLURM, with the answer of one device.

Importing this package loads neither torch nor an MPI: each name below is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> module that defines it.
_PUBLIC = {
    "AdaScale": "hvd_trainer.optim.adascale",
    "AdamSde": "hvd_trainer.optim.scaling_adam",
    "BatchPlan": "hvd_trainer.plan",
    "Callback": "hvd_trainer.train.callbacks.base",
    "Checkpoint": "hvd_trainer.train.callbacks.checkpoint",
    "DistributedOptimizer": "hvd_trainer.optim.distributed",
    "Evaluate": "hvd_trainer.train.callbacks.evaluate",
    "EMA": "hvd_trainer.train.callbacks.ema",
    "EarlyStop": "hvd_trainer.train.callbacks.early_stop",
    "GradScaler": "hvd_trainer.optim.grad_scaler",
    "LAMB": "hvd_trainer.optim.lamb",
    "LARS": "hvd_trainer.optim.lars",
    "JsonLines": "hvd_trainer.train.callbacks.jsonl",
    "LearningRate": "hvd_trainer.train.learning_rate",
    "Loader": "hvd_trainer.data.loader",
    "NoiseRule": "hvd_trainer.optim.noise_rule",
    "NoiseScale": "hvd_trainer.train.callbacks.noise_scale",
    "Progress": "hvd_trainer.train.callbacks.progress",
    "ScalingRule": "hvd_trainer.optim.scaling",
    "StreamLoader": "hvd_trainer.data.stream",
    "SyncBatchNorm": "hvd_trainer.nn.sync_batchnorm",
    "TensorBoard": "hvd_trainer.train.callbacks.tensorboard",
    "Trainer": "hvd_trainer.train.trainer",
    "Unfreeze": "hvd_trainer.train.callbacks.unfreeze",
    "Warmup": "hvd_trainer.train.callbacks.warmup",
    "Weighted": "hvd_trainer.values",
    "broadcast_model": "hvd_trainer.optim.replicas",
    "evaluate": "hvd_trainer.train.evaluation",
    "init": "hvd_trainer.comm.connect",
    "make_optimizer": "hvd_trainer.optim.by_name",
    "noise_scale": "hvd_trainer.optim.noise",
    "replica_check": "hvd_trainer.optim.replicas",
    "run": "hvd_trainer.train.run",
    "scale_lr": "hvd_trainer.optim.scaling",
}
_PUBLIC_MODULES = {"errors": "hvd_trainer.errors", "schedules": "hvd_trainer.optim.schedules"}

__all__ = sorted([*_PUBLIC, *_PUBLIC_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    elif name in _PUBLIC_MODULES:
        value = importlib.import_module(_PUBLIC_MODULES[name])
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
