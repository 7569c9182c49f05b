"""What a Trainer can be made of and asked for; everything else is refused before training starts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import Any, Optional, Union

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.data.loader import Loader
from hvd_trainer.data.stream import StreamLoader
from hvd_trainer.errors import ConfigError
from hvd_trainer.optim.distributed import DistributedOptimizer
from hvd_trainer.train.callbacks.base import Callback
from hvd_trainer.values import as_whole

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
ALIASES = {"fp32": "float32", "torch.float32": "float32", "bfloat16": "bf16", "torch.bfloat16": "bf16", "float16": "fp16", "torch.float16": "fp16"}
# Arguments of DistributedOptimizer that say how gradients travel and who updates.
REDUCTION = {"compression", "reduce_through", "update_by", "bucket_bytes", "overlap"}


def check_fit(loader: Any, resume: Any) -> None:
    """Raise ConfigError unless `fit` can work with them."""
    if not isinstance(loader, (Loader, StreamLoader)):
        is_torch = isinstance(loader, torch.utils.data.DataLoader)
        fix = "ht.Loader.from_dataloader(dataloader, comm)" if is_torch else "ht.Loader(dataset, ht.BatchPlan(...), comm)"
        raise ConfigError(f"fit({type(loader).__name__})", "an ht.Loader or ht.StreamLoader: it gives each rank its share", fix)
    if resume is not None and not isinstance(resume, (str, os.PathLike)):
        raise ConfigError(f"fit(resume={resume!r})", 'None, "auto", or a folder of ht.Checkpoint', 'resume="auto"; to start anew leave it out')


def num_steps(loader: Union[Loader, StreamLoader], epochs: Optional[int], steps: Optional[int]) -> float:
    """Optimizer steps that `fit` was asked for; infinite where only the epochs are known."""
    if (epochs is None) == (steps is None):
        raise ConfigError(f"fit(epochs={epochs}, steps={steps})", "one of the two", "trainer.fit(loader, epochs=20)")
    name, value = ("epochs", epochs) if steps is None else ("steps", steps)
    whole = as_whole(value)
    if whole is None or whole < 1:
        raise ConfigError(f"fit({name}={value!r})", "a whole number >= 1", f"{name}=20")
    if steps is not None:
        return whole
    return whole * loader.steps_per_epoch if isinstance(loader.steps_per_epoch, int) else math.inf


def listed(callbacks: Any) -> list:
    """The callbacks as a list of the Trainer's own."""
    if isinstance(callbacks, (Callback, str)) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"Trainer(callbacks={callbacks!r})", "a list of callbacks", "callbacks=[ht.Progress()], or leave it out")
    return list(callbacks)


def check_parts(comm: Any, model: Any, optimizer: Any, loss_fn: Any, callbacks: Any) -> None:
    """Raise ConfigError unless a Trainer can be made of them."""
    if not isinstance(comm, Communicator):
        raise ConfigError(f"Trainer(comm={type(comm).__name__})", "what ht.init() returns or ht.run passes to main", "comm = ht.init()")
    if not isinstance(model, torch.nn.Module) or not any(True for _ in model.parameters()):
        raise ConfigError(f"the model ({type(model).__name__}) has no parameters", "a torch.nn.Module with parameters", "check how it is built")
    wrong = next((p.device for p in model.parameters() if p.device != comm.device), None)
    if wrong is not None:
        raise ConfigError(f"the model is on {wrong}, this rank's device is {comm.device}", "the same device", "model.to(comm.device) before making the optimizer")
    if isinstance(optimizer, DistributedOptimizer) or not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"Trainer(optimizer={type(optimizer).__name__})", "a torch optimizer, not wrapped", "the Trainer wraps it; pass torch.optim.SGD(...)")
    if not callable(loss_fn):
        raise ConfigError(f"Trainer(loss_fn={loss_fn!r})", "a function (model, data) -> ht.Weighted", "pass the function itself")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigError(f"callback {callback!r}", "objects of ht.Callback classes", "an object, not the class: ht.Progress()")


def checked_precision(precision: Any) -> Optional[torch.dtype]:
    """The dtype for autocast; None for float32, where the model is taken as it is."""
    name = ALIASES.get(str(precision), precision)
    if not isinstance(name, str) or name not in PRECISIONS:
        raise ConfigError(f"precision={name!r}", ", ".join(PRECISIONS), 'precision="bf16"')
    return PRECISIONS[name]


def checked_reduction(reduction: dict[str, Any]) -> dict[str, Any]:
    """Arguments for DistributedOptimizer, and no others."""
    unknown = set(reduction) - REDUCTION
    if unknown:
        raise ConfigError(f"reduction={reduction!r}", ", ".join(sorted(REDUCTION)), 'reduction={"compression": "bf16"}')
    return dict(reduction)
