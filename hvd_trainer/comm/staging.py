"""What neither Horovod's binding nor MPI takes as it is, turned into something they take, and back."""

from __future__ import annotations

import torch

from hvd_trainer.errors import CollectiveError

# 16-bit floats are summed in float32 and rounded once; small integers wrap as torch's own sums do.
WORK_DTYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.int64: torch.int64,
    torch.int32: torch.int32,
    torch.int16: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
    torch.bool: torch.int32,
}


def check(tensor: torch.Tensor, device: torch.device, kind: str, name: str) -> None:
    """Refuse what no engine can reduce or move in place.

    Args:
        tensor: the caller's.
        device: the communicator's.
        kind, name: "allreduce_" or "broadcast_", and of what, for the message.

    Raises:
        CollectiveError: no tensor; or one on another device, sparse, of a dtype without a sum, or whose elements share
            memory (expanded), so that it cannot hold a result.
    """
    try:
        if (
            tensor.layout is torch.strided
            and tensor.device == device
            and tensor.dtype in WORK_DTYPE
            and tensor.is_contiguous()
        ):
            return  # the usual tensor; what follows takes as long as a small allreduce
    except AttributeError:  # not asked before, which would cost every call
        given = "None" if tensor is None else f"a {type(tensor).__name__}"
        fix = "one call for each tensor of a list; torch.tensor(number), torch.from_numpy(array); zeros for a gradient that is None"
        raise CollectiveError(f"{kind} {name!r}: {given}", "a torch.Tensor, which holds the result", fix) from None
    what = f"{kind} {name!r}"
    if tensor.layout is not torch.strided:
        raise CollectiveError(f"{what}: {shown(tensor)} is {tensor.layout}", "dense tensors", "pass tensor.to_dense()")
    if tensor.device.type != device.type:
        fix = "move it: tensor.cpu()" if device.type == "cpu" else f"move it: tensor.to({str(device)!r})"
        if tensor.is_cuda:
            fix += '; or reduce on GPUs: ht.init(backend="nccl")'
        raise CollectiveError(
            f"{what}: {shown(tensor)} is on {tensor.device}", f"tensors on {device.type}, comm.device", fix
        )
    if tensor.dtype not in WORK_DTYPE:
        allowed = ", ".join(str(d).replace("torch.", "") for d in WORK_DTYPE)
        fix = "convert it, e.g. torch.view_as_real(tensor) or tensor.float()"
        raise CollectiveError(f"{what}: {shown(tensor)}", f"dtype one of {allowed}", fix)
    if not tensor.is_contiguous() and 0 in tensor.stride():
        if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape, strict=True)):
            given = f"{what}: {shown(tensor)} is expanded: its elements share memory"
            raise CollectiveError(given, "a tensor of its own", "pass tensor.contiguous()")


def shown(tensor: torch.Tensor) -> str:
    """ "a float32 tensor of shape [2, 3]"."""
    return f"a {str(tensor.dtype).replace('torch.', '')} tensor of shape {list(tensor.shape)}"


def stage(tensor: torch.Tensor, reducing: bool = True) -> torch.Tensor:
    """A contiguous tensor with the values of `tensor` that the engines can send; its own memory where that can be sent.

    Args:
        tensor: what `check` let through.
        reducing: values are added (16-bit floats become float32); else they are only moved, and go as bytes.
    """
    tensor = tensor.detach()
    if reducing:
        return tensor.to(WORK_DTYPE[tensor.dtype]).contiguous()
    return tensor.contiguous().view(-1).view(torch.uint8)


def unstage(tensor: torch.Tensor, work: torch.Tensor, reducing: bool = True, scale: float = 1.0) -> None:
    """Put a result back, multiplied; nothing to move where `stage` gave the tensor's own memory."""
    if scale != 1.0:
        work.mul_(scale)
    if (
        work.data_ptr() == tensor.data_ptr()
        and work.numel() * work.element_size() == tensor.numel() * tensor.element_size()
    ):
        return
    if not reducing:
        work = work.view(tensor.dtype).view(tensor.shape)
    tensor.detach().copy_(work)


def work_op(dtype: torch.dtype, op: str) -> str:
    """The operation on the work tensor: a sum of bools means "any"."""
    return "max" if dtype is torch.bool and op == "sum" else op
