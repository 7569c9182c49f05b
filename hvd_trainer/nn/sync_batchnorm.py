"""Batch normalisation over the samples of all ranks, on any engine and device, exact for uneven local batches."""

from __future__ import annotations

import copy
from typing import Any, Optional

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvd_trainer.comm.api import Communicator


class SyncBatchNorm(_BatchNorm):
    """`torch.nn.BatchNorm*d` whose statistics are those of the joined batch of all ranks.

    Every rank must run the same forwards and backwards (a rank without samples runs them on an empty batch; the Trainer
    sees to that). Sums are combined in float64, so the result does not depend on how the batch is divided.

    Args:
        num_features: channels, the size of dimension 1 of the input.
        comm: the ranks.
        eps, momentum, affine, track_running_stats, device, dtype: as in `torch.nn.BatchNorm2d`.

    Example:
        >>> import hvd_trainer as ht
        >>> comm = ht.init(engine="single")
        >>> model = ht.SyncBatchNorm.convert(torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)), comm)
        >>> type(model[1]).__name__
        'SyncBatchNorm'

    Source: Ioffe & Szegedy 2015, arXiv 1502.03167, section 3 (statistics, gradients).
    """

    needs_every_rank = True  # a collective in forward and backward

    def __init__(
        self,
        num_features: int,
        comm: Communicator,
        eps: float = 1e-5,
        momentum: Optional[float] = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        comm.talks_in_backward = True
        self._comm = comm
        self._name = comm.unique_name("sync_batchnorm")

    @classmethod
    def convert(cls, module: torch.nn.Module, comm: Communicator) -> torch.nn.Module:
        """Replace every BatchNorm1d/2d/3d in `module`, keeping parameters, buffers and mode; returns the module.

        Call it before the optimizer is made. Parameters are kept as objects, so hooks and ties stay.
        """
        if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)):
            new = cls(module.num_features, comm, module.eps, module.momentum, module.affine, module.track_running_stats)
            new.weight, new.bias = module.weight, module.bias
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(new, name, getattr(module, name))
            new.train(module.training)
            return new
        for name, child in module.named_children():
            setattr(module, name, cls.convert(child, comm))
        return module

    def __deepcopy__(self, memo: dict) -> SyncBatchNorm:
        """A copy of the parameters and buffers that talks through the same communicator, under the same name."""
        new = copy.copy(self)
        new.__dict__ = {key: copy.deepcopy(value, memo) for key, value in self.__dict__.items() if key != "_comm"}
        new._comm = self._comm
        return new

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions (samples, channels, ...), got {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise `input` of shape (samples, num_features, ...); samples may be 0 on some ranks, not on all."""
        self._check_input_dim(input)
        use_batch = self.training or not self.track_running_stats
        if not use_batch:
            return torch.nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        output, mean, var, count = _Normalise.apply(input, self.weight, self.bias, self.eps, self._comm, self._name)
        if self.training and self.track_running_stats:
            self._track(mean, var, count)
        return output

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, var: torch.Tensor, count: float) -> None:
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = var * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _Normalise(torch.autograd.Function):
    """Forward and backward, each with one allreduce of two numbers a channel."""

    @staticmethod
    def forward(ctx, input, weight, bias, eps, comm, name):
        x, channels = _wide(input), input.shape[1]
        shape = [1, channels] + [1] * (input.dim() - 2)
        dims = [0, *range(2, input.dim())]
        local_count = x.numel() // channels
        # Each rank's centred square sum is accurate in its own precision; only the small remainder is combined.
        local_mean = x.mean(dims) if local_count else x.new_zeros(channels)
        centred = (x - local_mean.view(shape)).square().sum(dims).double()
        local_mean = local_mean.double()
        sums = torch.cat([local_mean * local_count, centred + local_count * local_mean.square(), local_mean.new_tensor([local_count])])
        sums = comm.allreduce_(sums, f"{name}.forward").wait()
        count = float(sums[-1])
        mean = sums[:channels] / count
        var = (sums[channels : 2 * channels] / count - mean.square()).clamp_(min=0)
        rstd = (var + eps).rsqrt()
        normalised = ((x - mean.to(x.dtype).view(shape)) * rstd.to(x.dtype).view(shape)).to(input.dtype)
        output = normalised
        if weight is not None:
            output = (_wide(normalised) * _wide(weight).view(shape) + _wide(bias).view(shape)).to(input.dtype)
        ctx.save_for_backward(normalised, weight, rstd)
        ctx.comm, ctx.name, ctx.count, ctx.shape, ctx.dims = comm, name, count, shape, dims
        ctx.mark_non_differentiable(mean, var)
        return output, mean, var, count

    @staticmethod
    def backward(ctx, grad_output, *_):
        normalised, weight, rstd = ctx.saved_tensors
        shape, dims = ctx.shape, ctx.dims
        grad, x = _wide(grad_output), _wide(normalised)
        sum_grad = grad.sum(dims).double()
        sum_grad_x = (grad * x).sum(dims).double()
        channels = sum_grad.numel()
        grad_weight = grad_bias = None
        if weight is not None:
            # This rank's part only: the optimizer adds the ranks up, as for every parameter.
            grad_weight, grad_bias = sum_grad_x.to(weight.dtype), sum_grad.to(weight.dtype)
        sums = ctx.comm.allreduce_(torch.cat([sum_grad, sum_grad_x]), f"{ctx.name}.backward").wait() / ctx.count
        scale = rstd if weight is None else rstd * weight.double()
        mean_grad, mean_grad_x = (part.to(grad.dtype).view(shape) for part in sums.split(channels))
        grad_input = (grad - mean_grad - x * mean_grad_x) * scale.to(grad.dtype).view(shape)
        return grad_input.to(grad_output.dtype), grad_weight, grad_bias, None, None, None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """16-bit floats as float32: sums over a batch need more than 8 or 11 bits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
