"""Every kind of model that people bring, trained by N ranks and by one plain torch process on the same global batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hvd_trainer as ht
from hvd_trainer.plan import split_evenly

STEPS, GLOBAL_BATCH, NUM_CLASSES = 12, 11, 4  # 11 does not divide among 2 or 3 ranks


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of a step: float64 (11, 8), int64 (11,)."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(GLOBAL_BATCH, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, NUM_CLASSES, (GLOBAL_BATCH,), generator=generator)


class Plain(torch.nn.Module):
    """Two layers; the base of most kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 12), torch.nn.Linear(12, NUM_CLASSES)

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        return self.last(self.first(x).tanh())


class BatchNorm(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(12)

    def forward(self, x, step):
        return self.last(self.norm(self.first(x)).tanh())


class SomeUnused(Plain):
    """A branch that some samples take: unused on some ranks in most steps, on all in every third."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.never = torch.nn.Linear(8, NUM_CLASSES), torch.nn.Linear(3, 3)

    def forward(self, x, step):
        chosen = (x[:, 0] > 1.0) & (step % 3 != 0)
        out = super().forward(x, step)
        return out.index_add(0, chosen.nonzero()[:, 0], self.branch(x[chosen])) if chosen.any() else out


class Tied(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.back = torch.nn.Linear(12, 8, bias=False)
        self.back.weight = torch.nn.Parameter(self.first.weight.detach().t().contiguous())
        self.again = self.back

    def forward(self, x, step):
        hidden = self.first(x).tanh()
        return self.last(self.first(self.back(hidden) + self.again(hidden * 0.5)).tanh())


class Checkpointed(Plain):
    def forward(self, x, step):
        return self.last(checkpoint(lambda x: self.first(x).tanh(), x, use_reentrant=False))


class Embedded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = torch.nn.Embedding(20, 6, sparse=True), torch.nn.Linear(6, NUM_CLASSES)

    def forward(self, x, step):
        return self.last(self.table((x * 5).long().clamp(-9, 9) + 10).mean(1))


class Complex(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.turn = torch.nn.Parameter(torch.polar(torch.ones(12), torch.linspace(0, 3, 12)))

    def forward(self, x, step):
        return self.last((self.first(x) * self.turn).abs())


class Unfrozen(Plain):
    """The first layer is frozen for five steps."""

    def forward(self, x, step):
        self.first.requires_grad_(step >= 5)
        return super().forward(x, step)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def sgd_without_decay(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


@dataclass(frozen=True)
class Kind:
    """One row of the table."""

    name: str
    model: Callable[[], torch.nn.Module]
    optimizer: Callable = sgd
    dtype: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    sync: bool = False
    ghost: bool = False
    compiled: bool = False
    tolerance: float = 1e-5


KINDS = [
    Kind("two layers", Plain),
    Kind("two layers, AdamW", Plain, adamw),
    Kind("two layers, fused AdamW", Plain, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, eps=1e-3, fused=True)),
    Kind("two layers, foreach SGD", Plain, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=True)),
    Kind("two layers, rate in a tensor", Plain, lambda m: torch.optim.AdamW(m.parameters(), lr=torch.tensor(0.01), eps=1e-3)),
    Kind("float64", Plain, dtype=torch.float64, tolerance=1e-12),
    Kind("BatchNorm, local statistics", BatchNorm, ghost=True),
    Kind("SyncBatchNorm", BatchNorm, sync=True),
    Kind("unused parameters", SomeUnused),
    Kind("frozen, later unfrozen", Unfrozen),
    Kind("tied weights", Tied),
    Kind("gradient checkpointing", Checkpointed),
    Kind("sparse embedding, SGD", Embedded, sgd_without_decay),
    Kind("sparse embedding, Adagrad", Embedded, lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1)),
    Kind("complex parameters", Complex),
    Kind("torch.compile", Plain, compiled=True),
    # 8 and 11 bits of mantissa: an activation is rounded by 2^-9 or 2^-12, differently for other batch shapes.
    Kind("autocast bf16", Plain, autocast=torch.bfloat16, tolerance=2e-2),
    Kind("autocast fp16", Plain, autocast=torch.float16, tolerance=2e-3),
]


def build(kind: Kind) -> torch.nn.Module:
    torch.manual_seed(7)
    model = kind.model()
    return model.to(kind.dtype) if kind.dtype != torch.float32 else model


def total_loss(kind: Kind, model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, step: int) -> torch.Tensor:
    with torch.autocast("cpu", dtype=kind.autocast, enabled=kind.autocast is not None):
        return F.cross_entropy(model(x.to(kind.dtype), step), y, reduction="sum")


def reference(kind: Kind, num_ranks: int) -> dict[str, torch.Tensor]:
    """Plain torch on whole batches; with local BatchNorm, each rank's share is normalised by itself."""
    model = build(kind)
    optimizer = kind.optimizer(model)
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        shares = split_evenly(GLOBAL_BATCH, num_ranks) if kind.ghost else [GLOBAL_BATCH]
        total, of_rank0 = 0.0, {}
        for x_part, y_part in zip(x.split(shares), y.split(shares)):
            total = total + total_loss(kind, model, x_part, y_part, step)
            of_rank0 = of_rank0 or {name: buffer.clone() for name, buffer in model.named_buffers()}
        (total / GLOBAL_BATCH).backward()
        for name, buffer in model.named_buffers():
            buffer.copy_(of_rank0[name])  # each rank counts its own share only
        optimizer.step()
    return model.state_dict()


def train(kind: Kind, comm) -> dict[str, torch.Tensor]:
    """The same through DistributedOptimizer, each rank on its share."""
    model = build(kind)
    if kind.sync:
        model = ht.SyncBatchNorm.convert(model, comm)
    opt = ht.DistributedOptimizer(kind.optimizer(model), comm, lr_scaling="none", model=model)
    run = torch.compile(model, backend="aot_eager") if kind.compiled else model
    plan = ht.BatchPlan(GLOBAL_BATCH, comm.size)
    begin, end = plan.rank_slice(comm.rank)
    for step in range(STEPS):
        x, y = batch(step)
        opt.backward(ht.Weighted(total_loss(kind, run, x[begin:end], y[begin:end], step), end - begin))
        opt.step()
        opt.zero_grad()
    return model.state_dict()


def difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference over largest magnitude, per tensor; the worst one."""
    worst = 0.0
    for name, value in expected.items():
        if value.is_floating_point() or value.is_complex():
            scale = value.abs().max().item()
            worst = max(worst, (found[name] - value).abs().max().item() / (scale or 1.0))
        else:
            assert torch.equal(found[name], value), name
    return worst
