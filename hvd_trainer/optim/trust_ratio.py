"""What LARS and LAMB share: which tensors adapt their rate, and the norms of whole layers without waiting for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch

from hvd_trainer.errors import ConfigError, LossError

# Sums squared norms over the ranks that hold parts of the tensors; in place or not, the sum is what it returns.
SumSquares = Callable[[torch.Tensor], torch.Tensor]


class LayerwiseOptimizer(torch.optim.Optimizer):
    """Base of LARS and LAMB; abstract.

    A group's `adapt` is True, False, or "auto": tensors of two and more dimensions adapt, biases and the gains of norms
    (one dimension) do not. What it comes to is decided once, when the group is added, and kept in `adapts`: a sharded
    update that puts flat parts in the place of the tensors afterwards changes nothing.

    Attributes:
        sum_squares: set by a sharded update: given squared norms of this rank's parts (a float64 vector, the same entries
            in the same order on all ranks), returns those of the whole tensors. None: the tensors are whole.
    """

    sum_squares: Optional[SumSquares] = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        adapt = group["adapt"]
        if adapt not in (True, False, "auto"):
            raise ConfigError(f"{type(self).__name__}(adapt={adapt!r})", 'True, False or "auto"', 'adapt="auto" leaves out biases and norms')
        group["adapts"] = [param.dim() >= 2 if adapt == "auto" else bool(adapt) for param in group["params"]]
        for name, limits in self.limits.items():
            values = group[name] if isinstance(group[name], (tuple, list)) else [group[name]]
            if not all(isinstance(value, (int, float, torch.Tensor)) and limits[0](value) for value in values):
                raise ConfigError(f"{type(self).__name__}({name}={group[name]!r})", limits[1], f"correct {name}=")

    # Option -> (test of one value, what is allowed); the classes add theirs.
    limits: dict[str, tuple[Callable[[Any], bool], str]] = {
        "lr": (lambda value: value >= 0, "a number >= 0"),
        "weight_decay": (lambda value: value >= 0, "a number >= 0"),
        "eps": (lambda value: value >= 0, "a number >= 0"),
    }

    def _with_gradients(self, group: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[bool]]:
        """Parameters that have a gradient, these gradients, and which of them adapt."""
        found = [(param, adapts) for param, adapts in zip(group["params"], group["adapts"]) if param.grad is not None]
        if any(param.grad.is_sparse for param, _ in found):
            name = type(self).__name__
            raise LossError(f"{name} got a sparse gradient", "dense gradients: the ratio needs the norm of the whole layer", "Embedding(sparse=False), or SparseAdam")
        if any(param.is_complex() for param, _ in found):
            raise LossError(f"{type(self).__name__} got a complex parameter", "real parameters", "torch.optim.SGD or Adam for that param group's model")
        return [param for param, _ in found], [param.grad for param, _ in found], [adapts for _, adapts in found]

    def _norms(self, *lists: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The 2-norm of each tensor, a float64 vector a list, of whole tensors also where this rank holds parts."""
        found = torch.stack([torch.stack(_each_norm(tensors)) for tensors in lists])
        if self.sum_squares is not None:
            found = self.sum_squares(found.square().flatten()).sqrt().view_as(found)
        return list(found)


def _each_norm(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    # Not in the tensor's own 16 bits, where a norm above 65504 is infinite. Several devices: a number each travels.
    first = tensors[0].device
    wide = [tensor.float() if tensor.element_size() < 4 else tensor for tensor in tensors]
    return [norm.double().to(first) for norm in torch._foreach_norm(wide)]


def guarded(ratio: torch.Tensor, defined: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`ratio` where it is defined, 1 elsewhere; never beyond what the tensors' dtype holds."""
    return torch.where(defined, ratio, 1.0).clamp(max=torch.finfo(like.dtype).max)


def norms_and_biases(model: torch.nn.Module) -> set[str]:
    """Names of the parameters that LARS, LAMB and weight decay leave out: biases, and all of a normalisation layer.

    By the kind of layer, and so also where a norm's gain has more than one dimension (LayerNorm over images).

    Args:
        model: any; layers of other libraries count as norms where their class is called ...Norm....

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.LayerNorm([2, 4, 4]))
        >>> sorted(norms_and_biases(model))
        ['0.bias', '1.bias', '1.weight']
    """
    found = set()
    for prefix, module in model.named_modules():
        is_norm = "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
        for name, _ in module.named_parameters(prefix, recurse=False):
            last = name.rpartition(".")[2]
            if is_norm or last == "bias" or last.endswith("_bias") or last.startswith("bias_"):
                found.add(name)
    return found


def layerwise_groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Two param groups: what adapts and decays, and biases and norms, that do neither. Frozen parameters are in them, too."""
    excluded = norms_and_biases(model)
    parts: tuple[list, list] = ([], [])
    for name, param in model.named_parameters():
        parts[name in excluded].append(param)
    groups = [{"params": parts[0], "adapt": True}, {"params": parts[1], "adapt": False, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
