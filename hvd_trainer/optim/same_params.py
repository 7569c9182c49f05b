"""That all ranks hold the same tensors, compared once, before anything about them is sent."""

from __future__ import annotations

import hashlib

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import CollectiveError
from hvd_trainer.optim.buckets import ParamSpec


def check_same_params(specs: list[ParamSpec], comm: Communicator, name: str) -> None:
    """Raise CollectiveError on all ranks, naming rank, tensor and shapes, where the ranks' parameters differ."""
    lines = [
        f"{s.name} {list(s.shape)} {str(s.dtype).removeprefix('torch.')}" + (f" strides {list(s.strides)}" if s.strides else "")
        for s in specs
    ]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if len(set(comm.gather_objects(digest, f"{name}.plan"))) == 1:
        return
    everyone = comm.gather_objects(lines, f"{name}.plan.lines")
    found = []
    for rank, theirs in enumerate(everyone):
        if theirs == everyone[0]:
            continue
        if len(theirs) != len(everyone[0]):
            found.append(f"  rank {rank} has {len(theirs)} trainable tensors, rank 0 has {len(everyone[0])}")
        for mine, other in zip(everyone[0], theirs):
            if mine != other:
                found.append(f"  rank 0: {mine}; rank {rank}: {other}")
                break
    raise CollectiveError(
        "the ranks do not train the same parameters:\n" + "\n".join(found[:8]),
        "the same names, shapes and dtypes in the same order on every rank",
        "build the model from the same config on all ranks (look for sizes taken from local data)",
    )
