"""What a resume must have in common with the run it goes on with, and the refusal where it has not."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch

from hvd_trainer.checkpoint.names import plain_name, plain_state_dict
from hvd_trainer.errors import CheckpointError

if TYPE_CHECKING:
    from hvd_trainer.data.loader import Loader

RECIPE_KEYS = ("global_batch", "num_samples", "seed", "shuffle", "drop_last")


def describe_recipe(loader: Loader, reference_batch: Fraction) -> dict[str, Any]:
    """What fixes the order of the samples and the learning rate, as JSON-able values."""
    return {
        "global_batch": loader.plan.global_batch,
        "num_samples": loader.num_samples,
        "seed": loader.seed,
        "shuffle": loader.shuffle,
        "drop_last": loader.drop_last,
        "reference_batch": str(reference_batch),
        "num_ranks": loader.plan.num_ranks,
    }


def describe_model(model: torch.nn.Module) -> list[str]:
    """One line a tensor of the state_dict: name, shape, dtype."""
    return [
        f"{name} {list(value.shape)} {str(value.dtype).removeprefix('torch.')}" if isinstance(value, torch.Tensor) else name
        for name, value in plain_state_dict(model).items()
    ]


def check_resume(
    manifest: dict[str, Any], model: torch.nn.Module, loader: Loader, extras: dict[str, str], path: str
) -> Fraction:
    """Refuse a checkpoint of another model or recipe; returns the reference batch to go on with.

    Args:
        manifest: of the checkpoint.
        model: of this run.
        loader: of this run.
        extras: what else must be equal in the saved recipe, by name.
        path: of the checkpoint, for messages.

    Raises:
        CheckpointError: names the first difference.
    """
    saved, mine = [plain_name(line) for line in manifest["model"]], describe_model(model)  # older releases saved other names
    if saved != mine:
        first = next((pair for pair in zip(saved, mine) if pair[0] != pair[1]), None)
        what = f"{first[0]!r} there, {first[1]!r} here" if first else f"{len(saved)} tensors there, {len(mine)} here"
        raise CheckpointError(
            f"{path} belongs to another model: {what}", "the model that was saved", "give this model a folder of its own, or build the saved one"
        )
    recipe = manifest["recipe"]
    reference = Fraction(recipe["reference_batch"])
    current = {**describe_recipe(loader, reference), **extras}
    for key in (*RECIPE_KEYS, *extras):
        if key in recipe and recipe[key] != current[key]:  # an older release saved fewer
            raise CheckpointError(
                f"{path} was trained with {key} = {recipe[key]}, this run has {current[key]}: it cannot go on at the exact sample",
                f"{key} = {recipe[key]}",
                f"{key} = {recipe[key]} to go on; to start anew, another folder than {os.path.dirname(path)} for ht.Checkpoint, with --set where it is a field of the config",
            )
    given = loader.plan.reference_batch
    if given is not None and Fraction(given) != reference:
        raise CheckpointError(
            f"{path} was trained with reference batch {recipe['reference_batch']}, this run asks for {given}: the learning rate would jump",
            f"reference_batch={recipe['reference_batch']}, or none (it is taken from the checkpoint)",
            "leave reference_batch out when resuming",
        )
    return reference
