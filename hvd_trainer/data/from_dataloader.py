"""What a torch DataLoader says, as arguments for a Loader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from hvd_trainer.errors import ConfigError


def loader_arguments(dataloader: Any) -> dict[str, Any]:
    """`dataset`, `batch_size` and the options of Loader that give the same epochs.

    Raises:
        ConfigError: not a DataLoader, or one whose batches are not cut from single indices.
    """
    if not isinstance(dataloader, DataLoader):
        raise ConfigError(
            f"Loader.from_dataloader({type(dataloader).__name__})", "a torch.utils.data.DataLoader", "ht.Loader(dataset, plan, comm)"
        )
    if isinstance(dataloader.dataset, IterableDataset):
        raise ConfigError(
            f"Loader.from_dataloader: {type(dataloader.dataset).__name__} is iterable, its samples have no index",
            "a map-style data set",
            "ht.StreamLoader(dataloader.dataset, plan, comm)",
        )
    if dataloader.batch_size is None or type(dataloader.batch_sampler) is not BatchSampler:
        raise ConfigError(
            f"Loader.from_dataloader: the batches come from {type(dataloader.batch_sampler or dataloader.sampler).__name__} "
            "and would be other ones on another number of ranks",
            "a DataLoader made with batch_size=, maybe with a sampler of single indices",
            "ht.Loader(dataset, ht.BatchPlan(...), comm, sampler=...)",
        )
    return {
        "dataset": dataloader.dataset,
        "batch_size": dataloader.batch_size,
        **_order(dataloader),
        "drop_last": dataloader.drop_last,
        "collate_fn": None if dataloader.collate_fn is default_collate else dataloader.collate_fn,
        "num_workers": dataloader.num_workers,
        "prefetch": dataloader.prefetch_factor or 2,
        "worker_init_fn": dataloader.worker_init_fn,
    }


def _order(dataloader: DataLoader) -> dict[str, Any]:
    sampler = dataloader.sampler
    if type(sampler) is SequentialSampler:
        return {"shuffle": False}
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataloader.dataset):
        return {"shuffle": True}
    return {"sampler": sampler}
