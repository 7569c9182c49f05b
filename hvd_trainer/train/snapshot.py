"""What a checkpoint holds of a run, and a new run that goes on from it at the exact sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hvd_trainer.checkpoint import rng
from hvd_trainer.checkpoint.names import load_plain_state_dict, plain_state_dict
from hvd_trainer.checkpoint.recipe import check_resume, describe_model, describe_recipe
from hvd_trainer.checkpoint.store import load
from hvd_trainer.comm.on_root import on_root
from hvd_trainer.data.stream import StreamLoader
from hvd_trainer.errors import CheckpointError
from hvd_trainer.log import say, warn
from hvd_trainer.optim.rates import REFERENCE
from hvd_trainer.optim.replicas import replica_check
from hvd_trainer.train.callbacks.base import Callback
from hvd_trainer.train.callbacks.warmup import Warmup
from hvd_trainer.values import Weighted

if TYPE_CHECKING:
    from hvd_trainer.train.trainer import Trainer


def take_snapshot(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and manifest of the run as it stands; call on all ranks (their random states are gathered)."""
    comm, loader, scaler = trainer.comm, trainer.loader, trainer.scaler
    states = comm.gather_objects(rng.get_rng_state(comm.device), comm.unique_name("rng"))
    stream = loader.state_dict() if isinstance(loader, StreamLoader) else None
    state = {
        "step": trainer.step,
        "epochs": [trainer.epoch, trainer.epoch_begin],
        "stream": comm.gather_objects(stream, comm.unique_name("stream.state")),
        "model": plain_state_dict(trainer.model),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.learning_rate.state_dict(),
        "epoch_loss": [float(trainer.epoch_loss.total), float(trainer.epoch_loss.weight)],
        "history": trainer.history,
        "callbacks": {key: callback.state_dict() for key, callback in _named(trainer.callbacks)},
        "rng": states,
        "scaler": scaler.state_dict() if scaler else {},
    }
    manifest = {
        "model": describe_model(trainer.model),
        "recipe": {**describe_recipe(loader, trainer.optimizer.reference_batch), **_recipe_extras(trainer)},
        "torch": torch.__version__,
    }
    return state, manifest


def resume_from(path: str, trainer: Trainer) -> None:
    """Put a trainer that took no step yet where the run of a checkpoint stood; call on all ranks.

    Args:
        path: a folder `step-...`, or a folder of them (then the newest).
        trainer: its optimizer is wrapped.

    Raises:
        CheckpointError: damaged, or of another model, recipe or param groups; on all ranks.
    """

    def read() -> dict[str, Any]:
        state, manifest = load(path)
        check_resume(manifest, trainer.model, trainer.loader, _recipe_extras(trainer), path)
        saved, mine = (_group_sizes(groups) for groups in (state["optimizer"]["param_groups"], optimizer.param_groups))
        if saved != mine:
            raise CheckpointError(
                f"{path} has param groups of {saved} tensors, this run's optimizer has {mine}",
                "the groups that were saved",
                "make the optimizer with the same groups, or start anew in another folder",
            )
        return state

    comm, optimizer = trainer.comm, trainer.optimizer
    # Rank 0 reads and every rank loads the same bytes; nothing is broadcast piece by piece afterwards.
    state = on_root(comm, read, comm.unique_name("resume.read"))
    load_plain_state_dict(trainer.model, state["model"])
    _load_optimizer(trainer, state["optimizer"])
    trainer.learning_rate.load_state_dict(state["schedule"])
    if trainer.scaler and state["scaler"]:
        trainer.scaler.load_state_dict(state["scaler"])
    trainer.step, trainer.history = state["step"], state["history"]
    trainer.epoch, trainer.epoch_begin = state["epochs"]
    trainer.epoch_loss = Weighted(*state["epoch_loss"])
    for key, callback in _named(trainer.callbacks):
        if key in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][key])
    if isinstance(trainer.loader, StreamLoader):
        trainer.loader.load_state_dict(state["stream"][comm.rank % len(state["stream"])])  # without shards all are the same
    if len(state["rng"]) == comm.size:
        rng.set_rng_state(state["rng"][comm.rank], comm.device)
    else:
        rng.reseed(trainer.loader.seed, trainer.step, comm.rank)
    replica_check(trainer.model, comm)
    say(f"resumed from {path} at step {trainer.step}", rank=comm.rank)


def _load_optimizer(trainer: Trainer, state: dict[str, Any]) -> None:
    """Load its state; say which rates and options of this start do not count."""
    optimizer, rank = trainer.optimizer, trainer.comm.rank
    given, given_options = [group[REFERENCE] for group in optimizer.param_groups], _group_options(optimizer)
    optimizer.load_state_dict(state)
    kept = [group[REFERENCE] for group in optimizer.param_groups]
    if kept != given:
        rates = [", ".join(f"{rate:g}" for rate in (each if len(set(each)) > 1 else each[:1])) for each in (given, kept)]
        warn(f"note: the learning rate {rates[0]} of this start is not used, the checkpoint goes on with {rates[1]}; another folder starts anew", rank=rank)
    changed = [f"{name}={mine[name]!r} (goes on with {saved[name]!r})" for mine, saved in zip(given_options, _group_options(optimizer))
               for name in mine if repr(mine[name]) != repr(saved[name])]  # fmt: skip
    if changed:
        warn(f"note: the optimizer's {', '.join(dict.fromkeys(changed))} of this start is not used", rank=rank)


def _recipe_extras(trainer: Trainer) -> dict[str, str]:
    """What else a resume may not change, as the names that a message can show."""
    return {
        "lr_scaling": trainer.rule.name,
        "schedule": trainer.schedule.kind,
        "optimizer": type(trainer.optimizer.optimizer).__name__,
        "warmup": next((callback.describe(trainer.loader) for callback in trainer.callbacks[::-1] if isinstance(callback, Warmup)), "none"),
    }


def _group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Momentum, weight decay, ... of each param group; without the momentum where a scheduler moves it."""
    names = [name for name in optimizer.defaults if name != "lr"]
    return [{n: g.get(n) for n in names if not ("max_momentum" in g and n in ("momentum", "betas"))} for g in optimizer.param_groups]


def _group_sizes(groups: Sequence[dict[str, Any]]) -> list[int]:
    return [len(group["params"]) for group in groups]


def _named(callbacks: Sequence[Callback]) -> list[tuple[str, Callback]]:
    """`Name`, `Name.1`, ...: keys that do not depend on the order of different callbacks."""
    counts: dict[str, int] = {}
    named = []
    for callback in callbacks:
        name = type(callback).__name__
        number = counts.get(name, 0)
        counts[name] = number + 1
        named.append((f"{name}.{number}" if number else name, callback))
    return named
