"""Who started this process and as which of how many, read from the environment alone (a pure function of it)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hvd_trainer import env as environment

STARTED_BY = {
    "none": "without a launcher",
    "horovod-gloo": "by horovodrun --gloo",
    "openmpi": "by mpirun",
    "pmix": "by srun --mpi=pmix",
    "hydra": "by mpirun (Hydra)",
    "pmi2": "by srun --mpi=pmi2",
    "torchrun": "by torchrun",
    "slurm": "by srun",
}
MPI_LAUNCHERS = ("openmpi", "pmix", "hydra", "pmi2")
FIRST_SPECIAL_STEP = 0xFFFFFFF0  # SLURM numbers the batch shell, the interactive step, ... from here on


@dataclass(frozen=True)
class Launched:
    """What the launcher says about this process.

    Args:
        launcher: a key of `STARTED_BY`.
        rank: 0 .. size - 1.
        size: processes that the launcher started.
        local_rank: 0 .. local_size - 1 on this node; None where the launcher does not say.
        local_size: processes on this node; None where the launcher does not say.
        seen: the variables that were there, for messages.
        by_horovodrun: whether horovodrun wrote the command line of the mpirun that started us.
    """

    launcher: str = "none"
    rank: int = 0
    size: int = 1
    local_rank: int | None = None
    local_size: int | None = None
    seen: dict[str, str] = field(default_factory=dict, compare=False)
    by_horovodrun: bool = False

    @property
    def started_by(self) -> str:
        """ "by mpirun", "by horovodrun --gloo", ...: for messages."""
        return "by horovodrun over MPI" if self.by_horovodrun else STARTED_BY[self.launcher]

    @property
    def by_mpi(self) -> bool:
        """Whether an MPI's process manager started us."""
        return self.launcher in MPI_LAUNCHERS


def read(env: Mapping[str, str]) -> Launched:
    """Find the launcher in an environment.

    The innermost launcher wins. Order: Horovod's Gloo, Open MPI, PMIx and PMI under SLURM, Hydra, torchrun, a plain
    SLURM step. SLURM comes last because under `mpirun` inside an allocation SLURM_PROCID is the daemon's, not ours; and
    only a step counts, because a batch shell has SLURM_NTASKS=8 although it was started once.

    Args:
        env: for example `env.snapshot()`.

    Returns:
        A Launched; launcher "none" and size 1 where nobody is recognised.

    Example:
        >>> read({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}).started_by
        'by mpirun'
    """
    seen = environment.launch_variables(env)

    def number(*names: str) -> int | None:
        for name in names:
            text = env.get(name, "").strip()
            if text.isdigit():
                return int(text)
        return None

    def found(
        launcher: str, rank: int | None, size: int | None, local: tuple[int | None, int | None]
    ) -> Launched | None:
        if rank is None or size is None or not rank < size:
            return None
        local_rank, local_size = local
        if local_rank is None or local_size is None or not local_rank < local_size:
            local_rank = local_size = None
        return Launched(launcher, rank, size, local_rank, local_size, seen, launcher == "openmpi" and is_horovodrun(env))

    step = number("SLURM_STEP_ID", "SLURM_STEPID")
    in_step = step is not None and step < FIRST_SPECIAL_STEP
    step_size = number("SLURM_STEP_NUM_TASKS") if in_step else None
    step_local = (number("SLURM_LOCALID"), tasks_on_node(env)) if in_step else (None, None)
    candidates = []
    if env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
        local = (number("HOROVOD_LOCAL_RANK"), number("HOROVOD_LOCAL_SIZE"))
        candidates.append(found("horovod-gloo", number("HOROVOD_RANK"), number("HOROVOD_SIZE"), local))
    local = (number("OMPI_COMM_WORLD_LOCAL_RANK"), number("OMPI_COMM_WORLD_LOCAL_SIZE"))
    candidates.append(found("openmpi", number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE"), local))
    if env.get("PMIX_NAMESPACE", "").startswith("slurm."):
        candidates.append(found("pmix", number("PMIX_RANK"), step_size, step_local))
    if env.get("HYDI_CONTROL_FD") or env.get("MPI_LOCALNRANKS") or not in_step:
        local = (number("MPI_LOCALRANKID"), number("MPI_LOCALNRANKS"))
        candidates.append(found("hydra", number("PMI_RANK"), number("PMI_SIZE"), local))
    else:
        candidates.append(found("pmi2", number("PMI_RANK"), number("PMI_SIZE"), step_local))
    if env.get("MASTER_ADDR"):
        local = (number("LOCAL_RANK"), number("LOCAL_WORLD_SIZE"))
        candidates.append(found("torchrun", number("RANK"), number("WORLD_SIZE"), local))
    if in_step:
        candidates.append(found("slurm", number("SLURM_PROCID"), step_size, step_local))
    return next((c for c in candidates if c is not None), Launched(seen=seen))


def is_horovodrun(env: Mapping[str, str]) -> bool:
    """Whether horovodrun started the mpirun: it becomes it (exec) and sets nothing of its own, so only these options are left.

    The same interface for MPI and for NCCL together with the flags that horovodrun gives every Open MPI. False where the
    user overruled one of them.

    Example:
        >>> options = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib", "OMPI_MCA_btl_tcp_if_include": "lo"}
        >>> is_horovodrun({**options, "NCCL_SOCKET_IFNAME": "lo"}), is_horovodrun(options)
        (True, False)
    """
    interface = env.get("OMPI_MCA_btl_tcp_if_include")
    flags = (env.get("OMPI_MCA_pml"), env.get("OMPI_MCA_btl"))
    return bool(interface) and interface == env.get("NCCL_SOCKET_IFNAME") and flags == ("ob1", "^openib")


def tasks_on_node(env: Mapping[str, str]) -> int | None:
    """Tasks of the SLURM step on this node, from SLURM_STEP_TASKS_PER_NODE ("2(x3),1") and SLURM_NODEID.

    Example:
        >>> tasks_on_node({"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"})
        1
    """
    counts: list[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        tasks, _, repeat = part.partition("(x")
        times = repeat.rstrip(")") or "1"
        if not (tasks.isdigit() and times.isdigit()):
            return None
        counts += [int(tasks)] * int(times)
    node = env.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else None
