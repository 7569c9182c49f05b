"""Equal replicas: send rank 0's tensors to all ranks, and prove that all ranks hold the same bits."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from hvd_trainer.comm.api import Communicator
from hvd_trainer.errors import ConfigError, ReplicaError
from hvd_trainer.optim.buckets import ParamSpec
from hvd_trainer.optim.same_params import check_same_params

# Bounds the extra memory that a broadcast needs.
CHUNK_BYTES = 64 * 1024 * 1024


def broadcast_model(model: torch.nn.Module, comm: Communicator, root: int = 0) -> None:
    """Overwrite parameters and buffers of `model` on all ranks with the root's.

    Args:
        model: the same modules on all ranks.
        comm: the ranks.
        root: the rank whose values everybody gets.

    Raises:
        CollectiveError: the ranks' models differ in names, shapes or dtypes; raised on all ranks.

    Example:
        >>> import hvd_trainer as ht
        >>> ht.broadcast_model(torch.nn.Linear(2, 1), ht.init(engine="single"))
    """
    named = list(named_tensors(model))
    specs = [ParamSpec(name, tuple(t.shape), t.dtype, t.device) for name, t in named]
    name = comm.unique_name("model")
    check_same_params(specs, comm, name)
    broadcast_tensors([tensor for _, tensor in named], comm, name, root)


def broadcast_tensors(tensors: Iterable[torch.Tensor], comm: Communicator, name: str, root: int = 0) -> None:
    """Overwrite tensors of any dtype, in place, with the root's: as bytes, so that no engine's dtype table matters."""
    if comm.size == 1:
        return
    chunk: list[torch.Tensor] = []
    size = number = 0

    def send() -> None:
        nonlocal chunk, size, number
        if chunk:
            data = torch.cat([_as_bytes(tensor) for tensor in chunk]).to(comm.device)
            comm.broadcast_(data, root, f"{name}.broadcast{number}")
            for tensor, part in zip(chunk, data.split([t.numel() * t.element_size() for t in chunk])):
                _from_bytes_(tensor, part.to(tensor.device))
            number += 1
        chunk, size = [], 0

    with torch.no_grad():
        for tensor in tensors:
            chunk.append(tensor.detach())
            size += tensor.numel() * tensor.element_size()
            if size >= CHUNK_BYTES:
                send()
        send()


def broadcast_state(optimizer: torch.optim.Optimizer, comm: Communicator, name: str) -> None:
    """Give every rank rank 0's optimizer state and options, where they differ (a checkpoint that only rank 0 loaded).

    Never by a step of the optimizer, and not piece by piece: the others load what rank 0 would save.
    """
    if comm.size == 1:
        return
    state = optimizer.state_dict()
    if len(set(comm.gather_objects(digest(state), name))) == 1:
        return
    data = io.BytesIO()
    if comm.rank == 0:
        torch.save(state, data)
    content = comm.broadcast_object(data.getvalue(), 0, f"{name}.content")
    if comm.rank != 0:
        optimizer.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=False))


def digest(value: Any) -> bytes:
    """Of nested dicts, lists and tuples of tensors and plain values: equal where every bit is."""
    found = hashlib.sha256()
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype} {tuple(value.shape)}".encode())
        found.update(_as_bytes(value.detach()).cpu().numpy().tobytes())
    elif isinstance(value, dict):
        for key, item in value.items():
            found.update(repr(key).encode() + digest(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            found.update(digest(item))
    else:
        found.update(repr(value).encode())
    return found.digest()


def replica_check(model: torch.nn.Module, comm: Communicator) -> None:
    """Raise on all ranks, naming the first tensor and the ranks, unless all ranks hold the same bits.

    Args:
        model: parameters and buffers are compared; buffers that are local by design (batch statistics) are compared too.
        comm: the ranks.

    Raises:
        ReplicaError: a tensor differs from rank 0's on some rank.
    """
    digests = {name: hashlib.sha256(_as_bytes(tensor.detach()).cpu().numpy().tobytes()).digest() for name, tensor in named_tensors(model)}
    whole = hashlib.sha256(b"".join(digests.values())).digest()
    name = comm.unique_name("replicas")
    if len(set(comm.gather_objects(whole, name))) == 1:
        return
    everyone = comm.gather_objects(digests, f"{name}.tensors")
    for tensor_name in everyone[0]:
        wrong = [rank for rank, theirs in enumerate(everyone) if theirs.get(tensor_name) != everyone[0][tensor_name]]
        if wrong:
            raise ReplicaError(
                f"{tensor_name!r} on rank {', '.join(map(str, wrong))} differs from rank 0's at {comm.where}",
                "the same bits on all ranks",
                "do not change parameters outside of the optimizer on some ranks only; ht.broadcast_model(model, comm) makes them equal",
            )
    raise ReplicaError(f"the ranks hold different sets of tensors at {comm.where}", "the same model on all ranks", "")


@contextlib.contextmanager
def common_buffers(model: torch.nn.Module, comm: Communicator, how: str) -> Iterator[None]:
    """While the block runs, all ranks have the same buffers; afterwards each has its own again.

    Batch statistics of ordinary BatchNorm are local: without this, ranks would measure N slightly different models.

    Args:
        model: on all ranks the same.
        comm: the ranks.
        how: "rank0" (what a checkpoint holds), "mean" over the ranks (floating-point ones; others from rank 0), or "own".

    Raises:
        ConfigError: another `how`.
    """
    if how not in ("rank0", "mean", "own"):
        raise ConfigError(f"buffers={how!r}", '"rank0", "mean" or "own"', 'buffers="mean" averages batch statistics over the ranks')
    buffers = list(model.buffers())
    if how == "own" or comm.size == 1 or not buffers:
        yield
        return
    name, own = comm.unique_name("buffers"), [buffer.clone() for buffer in buffers]
    averaged = [b for b in buffers if how == "mean" and b.is_floating_point()]
    broadcast_tensors([b for b in buffers if not any(b is a for a in averaged)], comm, name)
    pending = [comm.allreduce_(buffer, f"{name}.mean{number}") for number, buffer in enumerate(averaged)]
    for each in pending:
        each.wait().div_(comm.size)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in zip(buffers, own):
                buffer.copy_(before)


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, then buffers, each once (tied weights have one name)."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.contiguous().reshape(-1).view(torch.uint8)


def _from_bytes_(tensor: torch.Tensor, data: torch.Tensor) -> None:
    # clone: a slice of bytes may start where the wider dtype is not aligned.
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    real.copy_(data.clone().view(real.dtype).view(real.shape))
