"""One pass over a stream in global batches: what this rank gets of each, and when all are out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.data.sample_seeds import seed_all, seed_key, states_put_back
from hvd_trainer.errors import DataError
from hvd_trainer.plan import BatchPlan, split_evenly

_STREAM = 3  # numbers of its own, not those of indexed samples


@dataclass(frozen=True)
class Share:
    """This rank's part of one global batch.

    Args:
        samples: maybe none.
        position: of the first one, in what this rank draws in the pass.
        shares: samples of every rank in this step.
        key: of the random numbers drawn for them.
        state: of the stream after them, None where it has none.
    """

    samples: list
    position: int
    shares: list[int]
    key: int
    state: Optional[dict[str, Any]]


def shares_of_pass(
    stream: Any,
    plan: BatchPlan,
    comm: Communicator,
    *,
    sharded: bool,
    drop_last: bool,
    seed: int,
    number: int,
    state: Optional[dict[str, Any]] = None,
) -> Iterator[Share]:
    """The steps of pass `number`; iterate on all ranks, which agree on the end by one small sum a step.

    Args:
        stream: each `iter()` begins a pass.
        plan: the global batch; with shards each rank takes its rank batch.
        comm: the ranks.
        sharded: whether every rank has other samples.
        drop_last: end at the first global batch that is not full.
        seed: the random numbers of a sample are a function of (seed, pass, shard, position).
        number: 0, 1, ...
        state: `Share.state` to go on behind, in this pass.

    Raises:
        DataError: no sample, or (not sharded) ranks whose streams end at different samples.
    """
    key = seed_key(seed, number, comm.rank if sharded else 0, _STREAM)
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(number)
    position = 0
    if state is not None:
        stream.load_state_dict(state["stream"])
        position = state["position"]
    begun = position > 0
    with states_put_back():
        seed_all(key, -1)
        iterator = iter(stream)
    wanted = plan.rank_batches[comm.rank] if sharded else plan.global_batch
    is_out = False
    while True:
        samples: list = []
        with states_put_back():
            while len(samples) < wanted and not is_out:
                seed_all(key, position + len(samples))
                try:
                    samples.append(next(iterator))
                except StopIteration:
                    is_out = True
        counts = _counts(len(samples), comm)
        if not sharded:
            _check_same(counts, position)
        shares = counts if sharded else split_evenly(counts[0], comm.size)
        total = sum(shares)
        if total == 0 or (drop_last and total < plan.global_batch):
            if not begun:
                raise _nothing(total, number, plan)
            return
        begun = True
        begin = 0 if sharded else sum(shares[: comm.rank])
        mine = samples[begin : begin + shares[comm.rank]]
        after = position + len(samples)
        now = {"stream": stream.state_dict(), "position": after} if hasattr(stream, "state_dict") else None
        yield Share(mine, position + begin, shares, key, now)
        position = after


def _counts(mine: int, comm: Communicator) -> list[int]:
    """Samples that each rank has for this step, on every rank."""
    counts = torch.zeros(comm.size, dtype=torch.int64, device=comm.device)
    counts[comm.rank] = mine
    return comm.allreduce_(counts, comm.unique_name("stream")).wait().tolist()


def _check_same(counts: list[int], position: int) -> None:
    if len(set(counts)) > 1:
        raise DataError(
            "the ranks' streams do not end at the same sample: after "
            f"{position} the ranks have {', '.join(map(str, counts))} more for this step",
            "the same stream on every rank",
            "StreamLoader(sharded=True) if each rank reads its own shard; else look for what depends on the rank or the clock",
        )


def _nothing(total: int, number: int, plan: BatchPlan) -> DataError:
    if total:
        return DataError(
            f"the stream has {total} samples, the global batch is {plan.global_batch} and drop_last=True drops them all",
            f"at least {plan.global_batch} samples, or drop_last=False",
            "lower global_batch or keep the last batch",
        )
    return DataError(
        f"the stream gave no sample in pass {number + 1}",
        "at least 1, and an iter() that begins anew each time",
        "a generator is used up after one pass: pass an object whose __iter__ makes a new one",
    )
