"""The whole interface between this package and an engine: `Communicator` and the `Pending` of a running allreduce."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hvd_trainer import log
from hvd_trainer.comm import half_floats, staging
from hvd_trainer.comm.bridge import Bridge
from hvd_trainer.errors import CollectiveError

OPS = ("sum", "max", "min")


@dataclass(frozen=True)
class Topology:
    """Where this process stands in the job.

    Args:
        rank: 0 .. size - 1 over all nodes.
        size: processes in the job (the world size).
        local_rank: 0 .. local_size - 1 on this node.
        local_size: processes of the job on this node.
        node: 0 .. num_nodes - 1.
        num_nodes: nodes in the job.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    num_nodes: int = 1


class Pending:
    """An allreduce under way. `wait()` returns the tensor that was passed, now holding the result."""

    __slots__ = ("tensor", "_wait", "_done", "_flying", "_name")

    def __init__(
        self, tensor: torch.Tensor, wait: Callable[[], None] | None = None, done: Callable[[], bool] | None = None
    ) -> None:
        self.tensor = tensor
        self._wait, self._done = wait, done
        self._flying: set[str] | None = None
        self._name = ""

    def track(self, flying: set[str], name: str) -> Pending:
        """Keep `name` in `flying` until `wait()`; returns self."""
        flying.add(name)
        self._flying, self._name = flying, name
        return self

    def done(self) -> bool:
        """Whether `wait()` would return at once. Asking changes nothing: an engine may work only inside `wait()`."""
        return self._wait is None or (self._done is not None and self._done())

    def land(self) -> None:
        """The name may be used again."""
        if self._flying is not None:
            self._flying.discard(self._name)
            self._flying = None

    def wait(self) -> torch.Tensor:
        """Block until the result is in the tensor; calling it again returns it again."""
        self.land()
        if self._wait is not None:
            wait, self._wait, self._done = self._wait, None, None
            wait()
        return self.tensor


class Communicator(abc.ABC):
    """The ranks of one job. Abstract; each engine is one final class in a file of its own.

    Public methods check their arguments and, in the checked mode, that all ranks ask for the same thing; engines
    implement the underscored ones. Everything else in this package is built on these.

    Attributes:
        topology: rank, size, local_rank, ... (also as attributes of their own).
        device: torch.device on which tensors for `allreduce_` and `broadcast_` live.
        backend: "none", "mpi", "gloo" or "nccl".
        engine: "single", "mpi", "horovod" or "torch".
        timeout_s: seconds after which a collective that nobody answers ends the job.
        checked: compare (kind, name, shape, dtype, op) over all ranks before each collective; for tests and debugging.
        where: what the job is doing, for messages ("step 17"); set by whoever drives it.
        half_wire: how sums of 16-bit floats travel: "wide" (as float32), "narrow" (as 16 bits) or "auto", which takes what
            was measured to be faster; the same on all ranks.
        talks_in_backward: set by modules (SyncBatchNorm) whose backward has collectives of its own. Gradients are then not
            sent during backward: ranks that use different layers would interleave the two kinds differently.
        has_bridges: whether `bridge` joins nodes.
        backward_of: name of the optimizer whose backward is running, "" outside: gradients that another optimizer's
            parameters get meanwhile belong to a loss that is not theirs.
    """

    engine: str
    backend: str
    where: str = "start"
    half_wire: str = "auto"
    has_bridges: bool = False
    talks_in_backward: bool = False
    backward_of: str = ""

    def __init__(self, topology: Topology, device: torch.device, timeout_s: float, checked: bool) -> None:
        self.topology = topology
        self.device = device
        self.timeout_s = timeout_s
        self.checked = checked
        self.closed = False
        self.on_close: list[Callable[[], None]] = []
        self._counts: dict[str, int] = {}
        self._flying: set[str] = set()

    rank = property(lambda self: self.topology.rank)
    size = property(lambda self: self.topology.size)
    local_rank = property(lambda self: self.topology.local_rank)
    local_size = property(lambda self: self.topology.local_size)
    node = property(lambda self: self.topology.node)
    num_nodes = property(lambda self: self.topology.num_nodes)

    def unique_name(self, prefix: str) -> str:
        """`prefix.0`, `prefix.1`, ...: the same on all ranks as long as all ranks ask in the same order."""
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return f"{prefix}.{number}"

    def say(self, text: str) -> None:
        """Print whole lines to stdout, on rank 0 only, at once."""
        log.say(text, rank=self.rank)

    def allreduce_(self, tensor: torch.Tensor, name: str, op: str = "sum", scale: float = 1.0) -> Pending:
        """Reduce `tensor` over all ranks, in place and asynchronously; the result is the same bits on all ranks.

        Args:
            tensor: any shape (also empty, zero-dimensional or not contiguous) of float16, bfloat16, float32, float64,
                int32, int64, uint8 or bool on `device`; a parameter, too, whose values are reduced behind autograd's back.
                16-bit floats are summed in float32 and rounded once.
            name: equal on all ranks, and not in flight already.
            op: "sum", "max" or "min".
            scale: the sum of floats is multiplied by it, before the rounding: two float16 of 40,000 with scale 0.5 make
                40,000, where their sum is infinite. Equal on all ranks.

        Returns:
            A Pending; the tensor must not be touched before its `wait()`.

        Raises:
            CollectiveError: unknown op, a name that is in flight, no tensor or one that cannot be reduced, a scale where
                nothing can be scaled, or (checked mode) ranks that disagree.
        """
        if op not in OPS:
            raise CollectiveError(
                f"allreduce_({name!r}, op={op!r})",
                f"op one of {', '.join(OPS)}",
                "a mean is a sum with scale=1 / comm.size",
            )
        if name in self._flying:
            raise CollectiveError(
                f"allreduce_({name!r}): this name is under way already, at {self.where}",
                "one operation of a name at a time",
                "call wait() on the first, or comm.unique_name(prefix)",
            )
        staging.check(tensor, self.device, "allreduce_", name)
        if scale != 1.0 and (op != "sum" or not tensor.is_floating_point()):
            raise CollectiveError(
                f"allreduce_({name!r}, op={op!r}, scale={scale!r}) of {staging.shown(tensor)}",
                "a scale for sums of floats",
                "multiply afterwards",
            )
        if self.checked or self.closed:
            self._check("allreduce", name, tensor, op if scale == 1.0 else f"{op} times {scale!r}")
        if op == "sum":
            return self._allreduce_(tensor, name, op, scale).track(self._flying, name)
        is_nan = tensor.isnan().int() if tensor.is_floating_point() and self.size > 1 else None
        pending = self._allreduce_(tensor, name, op, scale)
        if is_nan is not None:
            pending = self._with_nan(pending, is_nan, name)
        return pending.track(self._flying, name)

    def broadcast_(self, tensor: torch.Tensor, root: int = 0, name: str = "broadcast") -> torch.Tensor:
        """Overwrite `tensor` on all ranks with the root's, in place; returns it.

        Args:
            tensor: as for `allreduce_`; the values are moved bit by bit.
            root: 0 .. size - 1.
            name: equal on all ranks.

        Raises:
            CollectiveError: no such root, or (checked mode) ranks that disagree.
        """
        self._check_root("broadcast_", name, root)
        staging.check(tensor, self.device, "broadcast_", name)
        self._check("broadcast", name, tensor, f"root {root}")
        self._broadcast_(tensor, root, name)
        return tensor

    def gather_objects(self, obj: Any, name: str = "gather") -> list[Any]:
        """Every rank's object, in rank order, on every rank (by pickle: for small things)."""
        self._check("gather_objects", name, None, "")
        return self._gather_objects(obj, name)

    def broadcast_object(self, obj: Any, root: int = 0, name: str = "object") -> Any:
        """The root's object on every rank (by pickle); what other ranks pass is ignored."""
        self._check_root("broadcast_object", name, root)
        self._check("broadcast_object", name, None, f"root {root}")
        return self._broadcast_object(obj, root, name)

    def bridge(self, num_carriers: int) -> Bridge | None:
        """What joins this rank with its peers on the other nodes; a collective, and the same object each time.

        Args:
            num_carriers: ranks of each node that have a bridge, the first ones; at most as many as the smallest node has.

        Returns:
            None on a rank that carries nothing, and where the engine has no bridges.
        """
        return None

    def barrier(self, name: str = "barrier") -> None:
        """Return when all ranks have come here."""
        self._check("barrier", name, None, "")
        self._barrier(name)

    @abc.abstractmethod
    def abort(self, code: int) -> None:
        """End the processes of all ranks now, with this exit code (1..255) where the launcher passes it on."""

    def close(self) -> None:
        """Leave the job in good order; the communicator cannot be used afterwards. A second call does nothing."""
        if not self.closed:
            self.closed = True
            for tell in self.on_close:
                tell()

    def _with_nan(self, pending: Pending, is_nan: torch.Tensor, name: str) -> Pending:
        """MPI and Gloo lose NaN in max and min, or not, by its rank; a NaN anywhere makes the result NaN on all ranks."""
        tensor = pending.tensor
        flags = self._allreduce_(is_nan, f"{name}.nan", "max", 1.0)

        def wait() -> None:
            pending.wait()
            tensor.detach().masked_fill_(flags.wait().bool(), float("nan"))

        return Pending(tensor, wait, lambda: pending.done() and flags.done())

    def _is_narrow(self, tensor: torch.Tensor, op: str) -> bool:
        """Whether this sum is one of 16-bit floats that travel as 16 bits; the same on all ranks."""
        if tensor.dtype not in half_floats.DTYPES or op != "sum" or self.device.type != "cpu":
            return False
        return half_floats.is_narrow(self.half_wire, self.engine, self.num_nodes, self.size, tensor.nbytes)

    @abc.abstractmethod
    def _allreduce_(self, tensor: torch.Tensor, name: str, op: str, scale: float) -> Pending: ...

    @abc.abstractmethod
    def _broadcast_(self, tensor: torch.Tensor, root: int, name: str) -> None: ...

    @abc.abstractmethod
    def _gather_objects(self, obj: Any, name: str) -> list[Any]: ...

    @abc.abstractmethod
    def _broadcast_object(self, obj: Any, root: int, name: str) -> Any: ...

    @abc.abstractmethod
    def _barrier(self, name: str) -> None: ...

    def _check_root(self, kind: str, name: str, root: int) -> None:
        if not 0 <= root < self.size:
            raise CollectiveError(
                f"{kind}({name!r}, root={root})", f"root 0 .. {self.size - 1}", "name a rank of this job"
            )

    def _check(self, kind: str, name: str, tensor: torch.Tensor | None, detail: str) -> None:
        """In the checked mode: raise on all ranks, naming rank, tensor and shapes, where the ranks' calls differ."""
        if self.closed:
            raise CollectiveError(
                f"{kind} {name!r} after close()", fix="close the communicator at the very end of the program"
            )
        if not self.checked or self.size == 1:
            return
        shape = None if tensor is None else tuple(tensor.shape)
        dtype = None if tensor is None else str(tensor.dtype).replace("torch.", "")
        calls = self._gather_objects((kind, name, shape, dtype, detail), "checked")
        if any(call != calls[0] for call in calls):
            raise CollectiveError(
                f"the ranks do not ask for the same collective at {self.where}:\n" + describe_calls(calls),
                "the same kind, name, shape, dtype and op on every rank",
                "look for an `if rank == 0:` around a collective, or for ranks with different models or code",
            )


def describe_calls(calls: list[tuple]) -> str:
    """One line a rank for the calls compared by the checked mode."""
    lines = []
    for rank, (kind, name, shape, dtype, detail) in enumerate(calls):
        what = "" if shape is None else f" shape {list(shape)} {dtype}"
        lines.append(f"  rank {rank}: {kind} {name!r}{what} {detail}".rstrip())
    return "\n".join(lines)
