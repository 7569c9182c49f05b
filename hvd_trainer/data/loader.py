"""A rank's share of each global batch, as micro-batches; a pure function of (seed, epoch, step)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Optional

import numpy as np
from torch.utils.data import DataLoader, Dataset

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.derived import agree
from hvd_trainer.data.device import to_device
from hvd_trainer.data.from_dataloader import loader_arguments
from hvd_trainer.data.order import sample_order
from hvd_trainer.data.reader import SampleReader
from hvd_trainer.data.sampler_order import check_sampler, epoch_order
from hvd_trainer.data.step_batch import StepBatch
from hvd_trainer.data.workers import Reading, Workers
from hvd_trainer.errors import ConfigError
from hvd_trainer.plan import BatchPlan
from hvd_trainer.values import as_whole


class Loader:
    """Batches of a map-style data set for this rank, the same global batches in the same order for any number of ranks.

    Args:
        dataset: has `len()` and `[index]` (and maybe `__getitems__`); the same length on all ranks.
        plan: global batch and micro-batch; made for this number of ranks.
        comm: the ranks.
        seed: of the shuffle, and of the random numbers that `dataset[index]` draws (python's, numpy's, torch's global
            generators): both are functions of (seed, epoch, index), the same everywhere.
        shuffle: False: in the data set's own order.
        sampler: in place of `shuffle`: any iterable of indices with `len()`, such as torch's WeightedRandomSampler. Rank 0
            draws each epoch's list, a function of (seed, epoch), and sends it to all.
        drop_last: leave out the last global batch of an epoch where it is smaller; else it is kept and weighted exactly.
        collate_fn: list of samples -> batch; default: torch's `default_collate`.
        num_workers: processes that fetch and collate ahead, >= 0; 0: the training process does. They are started with
            "spawn", so the data set must be picklable and the script needs `if __name__ == "__main__":`.
        prefetch: micro-batches that each worker reads ahead, >= 1.
        worker_init_fn: called with the worker's number in each, before its first sample.

    Raises:
        ConfigError: the plan was made for another number of ranks, `dataset` is not map-style, or (at the first batch)
            something cannot be pickled for the workers.
        DataError: no samples, or ranks whose data sets differ in length.

    Example:
        >>> import hvd_trainer as ht
        >>> comm = ht.init(engine="single")
        >>> loader = ht.Loader(list(range(10)), ht.BatchPlan(global_batch=4, num_ranks=1), comm, seed=0)
        >>> loader.steps_per_epoch, [micro.num_samples for step in loader.epoch(0) for micro in step]
        (3, [4, 4, 2])
    """

    def __init__(
        self,
        dataset: Dataset,
        plan: BatchPlan,
        comm: Communicator,
        *,
        seed: int = 0,
        shuffle: bool = True,
        sampler: Optional[Iterable[int]] = None,
        drop_last: bool = False,
        collate_fn: Optional[Callable[[list], Any]] = None,
        num_workers: int = 0,
        prefetch: int = 2,
        worker_init_fn: Optional[Callable[[int], None]] = None,
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise ConfigError(
                f"Loader({type(dataset).__name__})", "a map-style data set: len(dataset) and dataset[index]", "wrap it in one that has both"
            )
        if plan.num_ranks != comm.size:
            raise ConfigError(
                f"the plan is for {plan.num_ranks} ranks, the job has {comm.size}", "the same number", "BatchPlan(num_ranks=comm.size, ...)"
            )
        whole_seed = as_whole(seed)
        if whole_seed is None:
            raise ConfigError(f"Loader(seed={seed!r})", "a whole number: the order of the samples is a function of it", "seed=0, or leave it out")
        seed = whole_seed
        self.dataset, self.plan, self.comm = dataset, plan, comm
        self._sampler = sampler
        if sampler is not None:
            check_sampler(sampler)
            shuffle = type(sampler).__name__  # what a checkpoint's recipe says
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.num_samples = len(dataset) if sampler is None else len(sampler)  # of an epoch
        agree(
            comm,
            (self.num_samples, len(dataset), seed, shuffle, drop_last, plan),
            "length of the data set, seed, shuffle, drop_last and plan",
        )
        self.steps_per_epoch = plan.steps_per_epoch(self.num_samples, drop_last)
        _check_count("num_workers", num_workers, 0)
        _check_count("prefetch", prefetch, 1)
        self._reader = SampleReader(dataset, collate_fn, seed)
        self._workers = Workers(self._reader, num_workers, prefetch, worker_init_fn, f"rank {comm.rank}") if num_workers else None
        self._epoch = 0

    @classmethod
    def from_dataloader(cls, dataloader: DataLoader, comm: Communicator, plan: Optional[BatchPlan] = None, seed: int = 0) -> Loader:
        """A Loader with the data set, order, collate function and workers of a DataLoader that is there already.

        Args:
            dataloader: made with `batch_size=`; is itself not iterated.
            comm: the ranks.
            plan: by default the global batch is `batch_size` x ranks, with `batch_size` as the reference batch: what the
                script did alone is what each rank does, and the linear rule scales the rate by the number of ranks.
            seed: as in `Loader`; the DataLoader's own generator is not used.

        Raises:
            ConfigError: its data set is iterable (`ht.StreamLoader`), it cuts batches with a batch sampler, or its sampler
                is a DistributedSampler.

        Example:
            >>> from hvd_trainer.comm.single import SingleCommunicator
            >>> mine = DataLoader(list(range(10)), batch_size=4, shuffle=True)
            >>> loader = Loader.from_dataloader(mine, SingleCommunicator())
            >>> loader.plan.global_batch, loader.shuffle, len(loader)
            (4, True, 3)
        """
        options = loader_arguments(dataloader)
        dataset, batch_size = options.pop("dataset"), options.pop("batch_size")
        if plan is None:
            plan = BatchPlan(batch_size * comm.size, comm.size, reference_batch=batch_size)
        return cls(dataset, plan, comm, seed=seed, **options)

    def describe(self) -> str:
        """For the printed plan."""
        last = self.num_samples % self.plan.global_batch
        if last == 0:
            tail = "no smaller last batch"
        else:
            tail = f"last batch of {last} {'dropped' if self.drop_last else 'kept, weighted exactly'}"
        return f"{self.num_samples} samples, {self.steps_per_epoch} steps an epoch, {tail}"

    def __len__(self) -> int:
        """Optimizer steps in an epoch."""
        return self.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that plain iteration goes through next."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """This rank's batches of one epoch, bare. Own loops take `epoch()`, which also says where a step ends.

        Raises:
            ConfigError: ranks would get different numbers of batches, and a loop that steps on each would hang.
        """
        self._check_plain_iteration()
        for step in self.epoch(self._epoch):
            for micro in step:
                yield micro.data

    def _check_plain_iteration(self) -> None:
        last = self.num_samples % self.plan.global_batch
        for count in {self.plan.global_batch, last if last and not self.drop_last else self.plan.global_batch}:
            numbers = [len(self.plan.micro_batches(rank, count)) for rank in range(self.comm.size)]
            if len(set(numbers)) > 1:
                raise ConfigError(
                    f"a global batch of {count} is {numbers} batches on the ranks: `for batch in loader` would leave some waiting",
                    "the same number of batches on every rank",
                    "for step in loader.epoch(e): for micro in step: ... (opt.step() once a step); or drop_last=True",
                )

    def epoch(self, epoch: int, first_step: int = 0, *, fill_up: bool = False) -> Iterator[StepBatch]:
        """The steps of an epoch from `first_step` (0: all of them), the same number on every rank.

        Args:
            epoch: 0, 1, ...
            first_step: where to begin.
            fill_up: give every rank as many micro-batches as the busiest one, with empty batches (tensors of length 0) at
                the end: for models with SyncBatchNorm, whose forward needs every rank.
        """
        steps = range(first_step, self.steps_per_epoch)
        order = self._order(epoch)
        if self._workers is None:
            read = functools.partial(self._read_here, epoch)
        else:
            tasks = ((epoch, indices) for step in steps for indices in self._indices(order, step, fill_up))
            read = functools.partial(self._read_ahead, epoch, self._workers.start(tasks))
        number = 0  # of the step's first micro-batch
        for step in steps:
            indices = self._indices(order, step, fill_up)
            is_last = step == self.steps_per_epoch - 1
            yield StepBatch(step, self._global_samples(step), indices, is_last, functools.partial(read, number))
            number += len(indices)

    def _order(self, epoch: int) -> Callable[[np.ndarray], np.ndarray]:
        """Positions in the epoch -> indices. With a sampler all ranks talk here, once an epoch."""
        if self._sampler is not None:
            return epoch_order(
                self._sampler, self.comm, seed=self.seed, epoch=epoch, length=self.num_samples, num_samples=len(self.dataset)
            ).__getitem__
        if self.shuffle:
            return lambda positions: sample_order(positions, self.num_samples, self.seed, epoch)
        return lambda positions: positions

    def _global_samples(self, step: int) -> int:
        return min(self.plan.global_batch, self.num_samples - step * self.plan.global_batch)

    def _indices(self, order: Callable[[np.ndarray], np.ndarray], step: int, fill_up: bool) -> list[list[int]]:
        """This rank's samples of a step, one list a micro-batch."""
        begin, count, rank = step * self.plan.global_batch, self._global_samples(step), self.comm.rank
        mine_begin, mine_end = self.plan.rank_slice(rank, count)
        mine = order(np.arange(begin + mine_begin, begin + mine_end)).tolist()
        indices, at = [], 0
        for size in self.plan.micro_batches(rank, count):
            indices.append(mine[at : at + size])
            at += size
        if fill_up:
            indices += [[]] * (len(self.plan.micro_batches(0, count)) - len(indices))
        return indices

    def _read_here(self, epoch: int, first: int, number: int, indices: list[int]) -> Any:
        return to_device(self._reader.read(epoch, indices), self.comm.device)

    def _read_ahead(self, epoch: int, reading: Reading, first: int, number: int, indices: list[int]) -> Any:
        return to_device(reading.fetch(first + number, (epoch, indices)), self.comm.device)


def _check_count(name: str, value: Any, least: int) -> None:
    whole = as_whole(value)
    if whole is None or whole < least:
        raise ConfigError(f"Loader({name}={value!r})", f"a whole number >= {least}", f"{name}=2")
