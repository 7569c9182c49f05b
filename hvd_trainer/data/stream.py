"""`StreamLoader`: batches of data without index or known length, the same interface as `Loader`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Optional, Union

from torch.utils.data import default_collate

from hvd_trainer.comm.api import Communicator
from hvd_trainer.comm.derived import agree
from hvd_trainer.data.device import to_device
from hvd_trainer.data.reader import without_samples
from hvd_trainer.data.sample_seeds import seed_all, states_put_back
from hvd_trainer.data.shard_passes import Share, shares_of_pass
from hvd_trainer.data.step_batch import StepBatch
from hvd_trainer.errors import ConfigError, DataError
from hvd_trainer.plan import BatchPlan, split_evenly

_COLLATE = 1


class UnknownSteps:
    """The steps of an epoch that nobody has counted: whoever computes with them gets told so."""

    def __repr__(self) -> str:
        return "unknown"

    def _refuse(self, *_: Any) -> NoReturn:
        raise ConfigError(
            "something counts in epochs, and the length of a stream's epoch is not known",
            "a number of steps",
            "StreamLoader(steps_per_epoch=...), or count in steps: Warmup(steps=), fit(steps=)",
        )

    __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __int__ = __index__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


class StreamLoader:
    """Batches of an iterable for this rank, also where its length is unknown or differs between ranks.

    The end of a pass is agreed on by one small sum a step, so no rank waits for one that is out, and no sample is lost or
    counted twice. Samples are drawn in the training process.

    Args:
        stream: an iterable of samples, each `iter()` of which begins a pass (torch's IterableDataset, ...). Its
            `set_epoch(pass)`, if it has one, is called first.
        plan: global batch and micro-batch; made for this number of ranks.
        comm: the ranks.
        sharded: False: every rank sees the same stream and takes its share of each global batch by position, so the
            answer is that of one rank. True: each rank has a shard of its own and takes its rank batch from it; one that
            is out goes on with weight 0 until all are.
        steps_per_epoch: an epoch is so many steps, whatever the passes: for endless streams, and for schedules in epochs.
            None: an epoch is a pass.
        seed: random numbers drawn in the stream (python's, numpy's, torch's global generators) are a function of (seed,
            pass, shard, position).
        drop_last: end a pass at the first global batch that is not full.
        collate_fn: list of samples -> batch; default: torch's `default_collate`.

    Raises:
        ConfigError: the plan was made for another number of ranks, or `stream` is not iterable.
        DataError: (while it is read) no sample in a pass, or ranks that should see the same stream and do not.

    Example:
        >>> import hvd_trainer as ht
        >>> comm = ht.init(engine="single")
        >>> loader = ht.StreamLoader(range(10), ht.BatchPlan(global_batch=4, num_ranks=1), comm)
        >>> [micro.data.tolist() for step in loader.epoch(0) for micro in step]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    num_samples = None  # not known
    steps_per_epoch: Union[int, UnknownSteps]

    def __init__(
        self,
        stream: Any,
        plan: BatchPlan,
        comm: Communicator,
        *,
        sharded: bool = False,
        steps_per_epoch: Optional[int] = None,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Optional[Callable[[list], Any]] = None,
    ) -> None:
        if not hasattr(stream, "__iter__"):
            raise ConfigError(f"StreamLoader({type(stream).__name__})", "an iterable of samples", "ht.Loader takes what has len() and [index]")
        if plan.num_ranks != comm.size:
            raise ConfigError(
                f"the plan is for {plan.num_ranks} ranks, the job has {comm.size}", "the same number", "BatchPlan(num_ranks=comm.size, ...)"
            )
        if steps_per_epoch is not None and (isinstance(steps_per_epoch, bool) or not hasattr(steps_per_epoch, "__index__") or steps_per_epoch < 1):
            raise ConfigError(f"StreamLoader(steps_per_epoch={steps_per_epoch!r})", "a whole number >= 1, or None", "steps_per_epoch=1000")
        agree(comm, (seed, sharded, steps_per_epoch, drop_last, plan), "seed, sharded, steps_per_epoch, drop_last and plan")
        self.stream, self.plan, self.comm = stream, plan, comm
        self.sharded, self.seed, self.drop_last = sharded, seed, drop_last
        self.steps_per_epoch = UnknownSteps() if steps_per_epoch is None else int(steps_per_epoch)
        # What a resume must share: a shard belongs to a rank, so the number of ranks is part of it.
        self.shuffle = f"stream{f' in {comm.size} shards' if sharded else ''}, {self.steps_per_epoch} steps an epoch"
        self._collate = collate_fn or default_collate
        self._epoch = 0
        self._example: list = []  # a sample, to make an empty batch of
        self._running: Optional[Iterator[tuple[int, Share]]] = None  # with steps_per_epoch: passes, one behind the other
        self._next = (0, 0)  # epoch and step that come next
        self._state: Optional[dict[str, Any]] = None  # where the stream stands before them
        self._restored: Optional[dict[str, Any]] = None

    def describe(self) -> str:
        """For the printed plan."""
        return self.shuffle

    def __len__(self) -> int:
        """Optimizer steps in an epoch.

        Raises:
            TypeError: they are not known (as torch's DataLoader has it for an iterable).
        """
        if isinstance(self.steps_per_epoch, UnknownSteps):
            raise TypeError("the length of a stream is not known; StreamLoader(steps_per_epoch=...) sets one")
        return self.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that plain iteration goes through next."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """This rank's batches of one epoch, bare."""
        for step in self.epoch(self._epoch):
            for micro in step:
                yield micro.data

    def epoch(self, epoch: int, first_step: int = 0, *, fill_up: bool = False) -> Iterator[StepBatch]:
        """The steps of an epoch from `first_step`, the same number on every rank; iterate on all ranks.

        Args:
            epoch: 0, 1, ...
            first_step: where to begin. What comes before is drawn again and thrown away, unless `load_state_dict` has put
                the stream there.
            fill_up: as in `Loader.epoch`.
        """
        steps = self._counted(epoch, first_step) if isinstance(self.steps_per_epoch, int) else self._one_pass(epoch, first_step)
        for step, (number, share, is_last) in enumerate(steps, first_step):
            self._next = (epoch + 1, 0) if is_last else (epoch, step + 1)
            self._state = None if share.state is None else {"pass": number, **share.state}
            yield self._step_batch(step, share, is_last, fill_up)

    def state_dict(self) -> Optional[dict[str, Any]]:
        """Where this rank's stream stands behind the last step that was handed out; None if it has no `state_dict`."""
        if self._state is None:
            return None
        return {"next": list(self._next), **self._state}

    def load_state_dict(self, state: Optional[dict[str, Any]]) -> None:
        """Let the next `epoch(...)`, if it asks for that very step, go on without drawing everything again."""
        self._restored = state

    def _one_pass(self, epoch: int, first_step: int) -> Iterator[tuple[int, Share, bool]]:
        """Pass `epoch`. That a step is the last one is known when no other comes: it looks one step ahead."""
        state = self._take_restored(epoch, first_step) if first_step else None
        shares = self._pass(epoch, state)
        before: Optional[Share] = None
        for share in shares if state else itertools.islice(shares, first_step, None):
            if before is not None:
                yield epoch, before, False
            before = share
        if before is not None:
            yield epoch, before, True

    def _counted(self, epoch: int, first_step: int) -> Iterator[tuple[int, Share, bool]]:
        """The steps that are left of an epoch of `steps_per_epoch`; the passes go on from epoch to epoch."""
        state = self._take_restored(epoch, first_step)
        if state:
            self._running = self._passes(state["pass"], state)
        elif self._running is None or self._next != (epoch, first_step):
            self._running = itertools.islice(self._passes(0), epoch * self.steps_per_epoch + first_step, None)
        for step in range(first_step, self.steps_per_epoch):
            number, share = next(self._running)
            yield number, share, step == self.steps_per_epoch - 1

    def _passes(self, number: int, state: Optional[dict[str, Any]] = None) -> Iterator[tuple[int, Share]]:
        while True:
            for share in self._pass(number, state):
                yield number, share
            number, state = number + 1, None

    def _pass(self, number: int, state: Optional[dict[str, Any]] = None) -> Iterator[Share]:
        return shares_of_pass(
            self.stream, self.plan, self.comm, sharded=self.sharded, drop_last=self.drop_last, seed=self.seed, number=number, state=state
        )  # fmt: skip

    def _take_restored(self, epoch: int, first_step: int) -> Optional[dict[str, Any]]:
        state, self._restored = self._restored, None
        return state if state and state["next"] == [epoch, first_step] else None

    def _step_batch(self, step: int, share: Share, is_last: bool, fill_up: bool) -> StepBatch:
        self._example = share.samples[:1] or self._example
        indices, at = [], share.position
        for size in self._sizes(len(share.samples)):
            indices.append(list(range(at, at + size)))
            at += size
        if fill_up:
            indices += [[]] * (max(len(self._sizes(count)) for count in share.shares) - len(indices))

        def fetch(number: int, positions: list[int]) -> Any:
            if not positions:
                return to_device(without_samples(self._collated(self._one_sample(), share.key, 0)), self.comm.device)
            begin = positions[0] - share.position
            return to_device(self._collated(share.samples[begin : begin + len(positions)], share.key, positions[0]), self.comm.device)

        return StepBatch(step, sum(share.shares), indices, is_last, fetch)

    def _sizes(self, count: int) -> list[int]:
        """Of the micro-batches of a rank that has `count` samples."""
        return split_evenly(count, -(-count // (self.plan.micro_batch or count))) if count else []

    def _one_sample(self) -> list:
        if not self._example:
            raise DataError(
                "this rank has had no sample to make an empty batch of, and a model with SyncBatchNorm needs one of every rank",
                "at least one sample in every rank's shard",
                "divide the shards more evenly, or sharded=False",
            )
        return self._example

    def _collated(self, samples: list, key: int, position: int) -> Any:
        with states_put_back():
            seed_all(key ^ _COLLATE, position)
            return self._collate(samples)
