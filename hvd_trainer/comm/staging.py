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


def stage(tensor: torch.Tensor, device: torch.device, what: str, reducing: bool = True) -> torch.Tensor:
    """A contiguous tensor with the values of `tensor` that the engines can send; `tensor` itself where it can be.

    Args:
        tensor: any shape, dense, of a dtype in `WORK_DTYPE`, on `device`.
        device: the communicator's.
        what: "allreduce_ 'grad.0'", for the messages.
        reducing: values are added (16-bit floats become float32); else only moved, and the bytes go as they are.

    Raises:
        CollectiveError: a tensor on another device, sparse, of a dtype that cannot be reduced, or whose elements share
            memory (expanded), so that it cannot hold a result.
    """
    if tensor.dtype is torch.float32 and tensor.device == device and reducing and tensor.is_contiguous():
        return tensor.detach()  # nearly every call; the checks below cost more than a small message
    given = f"{what}: a {str(tensor.dtype).replace('torch.', '')} tensor of shape {list(tensor.shape)}"
    if tensor.device.type != device.type:
        fix = "move it: tensor.cpu()" if device.type == "cpu" else f"move it: tensor.to({str(device)!r})"
        if tensor.is_cuda:
            fix += '; or reduce on GPUs: ht.init(backend="nccl")'
        raise CollectiveError(f"{given} on {tensor.device}", f"tensors on {device.type}, where comm.device is", fix)
    if tensor.layout is not torch.strided:
        raise CollectiveError(f"{given} is {tensor.layout}", "dense tensors", "pass tensor.to_dense()")
    if tensor.dtype not in WORK_DTYPE:
        allowed = ", ".join(str(d).replace("torch.", "") for d in WORK_DTYPE)
        raise CollectiveError(given, f"dtype one of {allowed}", "convert it, e.g. torch.view_as_real(tensor) or tensor.float()")
    if any(stride == 0 and length > 1 for stride, length in zip(tensor.stride(), tensor.shape)):
        raise CollectiveError(f"{given} is expanded: its elements share memory", "a tensor of its own", "pass tensor.contiguous()")
    tensor = tensor.detach()
    if reducing:
        tensor = tensor.to(WORK_DTYPE[tensor.dtype])
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    return tensor.contiguous().view(-1).view(torch.uint8)


def unstage(tensor: torch.Tensor, work: torch.Tensor, reducing: bool = True) -> None:
    """Put a result back; nothing to do where `stage` gave the tensor's own memory."""
    if work.data_ptr() == tensor.data_ptr() and work.numel() * work.element_size() == tensor.numel() * tensor.element_size():
        return
    if not reducing:
        work = work.view(tensor.dtype).view(tensor.shape)
    tensor.detach().copy_(work)


def work_op(dtype: torch.dtype, op: str) -> str:
    """The operation on the work tensor: a sum of bools means "any"."""
    return "max" if dtype is torch.bool and op == "sum" else op
