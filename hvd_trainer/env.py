"""The one place that reads or sets environment variables: what launchers put there, what users may set.

Variables of our own, all optional. Whoever starts the job sets them, so they win over the arguments in the script:

    HVD_TRAINER_BACKEND     as `ht.init(backend=...)`
    HVD_TRAINER_ENGINE      as `ht.init(engine=...)`
    HVD_TRAINER_INIT_METHOD as `ht.init(init_method=...)`: where the ranks of the torch engine meet
    HVD_TRAINER_TIMEOUT_S   as `ht.init(timeout_s=...)`
    HVD_TRAINER_CHECKED     1 compares every collective over the ranks (slow: tests, debugging); 0 does not
    HVD_TRAINER_MALLOC      what malloc keeps of freed memory (`hvd_trainer.heap`): blocks (below 32 MiB), all, or as the system has it
    HVD_TRAINER_TRIAL       the JSON file by which `hvd-trainer tune` sets and watches one trial (`hvd_trainer.train.trial`)

(`hvd_trainer.launcher` runs before anything is installed and keeps its own list.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from hvd_trainer.errors import ConfigError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# What mallopt sets of the same, each also a tunable of glibc (glibc.malloc.trim_threshold, ...); MALLOC_ARENA_MAX_ is another matter.
MALLOC_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
MALLOC_KEEPS = ("blocks", "all", "system")
LAUNCH_PREFIXES = (
    "OMPI_COMM_WORLD_",
    "PMIX_RANK",
    "PMI_",
    "MPI_LOCAL",
    "SLURM_",
    "HOROVOD_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
)


def snapshot() -> dict[str, str]:
    """All variables as they are now, as a copy: what the pure functions of `comm.launched` take."""
    return dict(os.environ)


def launch_variables(env: Mapping[str, str]) -> dict[str, str]:
    """The variables in `env` that say who started this process, for messages.

    Example:
        >>> launch_variables({"PMI_RANK": "1", "HOME": "/root"})
        {'PMI_RANK': '1'}
    """
    wanted = (
        "RANK",
        "SIZE",
        "NTASKS",
        "PROCID",
        "NUM_TASKS",
        "LOCALID",
        "LOCALNRANKS",
        "STEP_ID",
        "JOB_ID",
        "CONTROLLER",
    )
    return {k: env[k] for k in sorted(env) if k.startswith(LAUNCH_PREFIXES) and k.endswith(wanted)}


def own_setting(name: str, given: object) -> tuple[object, str]:
    """`HVD_TRAINER_<name>` where it is set, else what the script gave; and the variable's name where it decided.

    Example:
        >>> own_setting("NO_SUCH_SETTING", "auto")
        ('auto', '')
    """
    variable = f"HVD_TRAINER_{name}"
    value = os.environ.get(variable, "").strip()
    return (value, variable) if value else (given, "")


def checked(given: bool | None) -> bool:
    """Whether every collective is compared over the ranks: HVD_TRAINER_CHECKED, else what the script gave, else not.

    Raises:
        ConfigError: the variable is neither 0 nor 1.
    """
    value, variable = own_setting("CHECKED", given)
    if not variable:
        return bool(given)
    if value not in ("0", "1"):
        raise ConfigError(f"{variable}={value}", "0 or 1", f"unset {variable}")
    return value == "1"


def malloc_keeps() -> str:
    """What malloc is to keep of freed memory: "blocks" below 32 MiB, "all", or "system": the user has told it otherwise.

    Raises:
        ConfigError: HVD_TRAINER_MALLOC is something else.
    """
    value, variable = own_setting("MALLOC", "")
    if variable and value not in MALLOC_KEEPS:
        raise ConfigError(f"{variable}={value}", ", ".join(MALLOC_KEEPS), f"unset {variable}")
    if variable:
        return str(value)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    by_user = any(name in os.environ or f"malloc.{name[7:-1].lower()}" in tunables for name in MALLOC_VARIABLES)
    return "system" if by_user else "blocks"


def user_threads(env: Mapping[str, str]) -> str:
    """The first variable by which the user fixed the CPU threads, as "OMP_NUM_THREADS=4"; "" where there is none.

    torchrun sets OMP_NUM_THREADS=1 of its own accord, whatever the cores: that is not the user's choice.
    """
    for name in THREAD_VARIABLES:
        value = env.get(name, "").strip()
        by_torchrun = name == "OMP_NUM_THREADS" and value == "1" and "TORCHELASTIC_RUN_ID" in env
        if value and not by_torchrun:
            return f"{name}={value}"
    return ""


def visible_devices(env: Mapping[str, str]) -> str | None:
    """CUDA_VISIBLE_DEVICES, None where it is not set."""
    return env.get("CUDA_VISIBLE_DEVICES")


def set_default(name: str, value: str, env: MutableMapping[str, str] | None = None) -> None:
    """Set a variable for the libraries loaded later, unless the user set it."""
    (os.environ if env is None else env).setdefault(name, value)


def quiet_polling(timeout_s: float) -> None:
    """Settings under which the threads of MPI and Horovod do not eat the compute; call before either is initialised.

    Without the first, a rank that waits inside Open MPI keeps its core busy: a transformer step of 99 ms took 161 ms.
    Gloo gives up after 30 s of its own; the job's own limit is `timeout_s` seconds.
    """
    set_default("OMPI_MCA_mpi_yield_when_idle", "1")
    set_default("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(1, int(-(-timeout_s // 1)))))


def gloo_interface(name: str) -> None:
    """The network interface that torch's Gloo uses, unless the user named one; "" leaves it to Gloo."""
    if name:
        set_default("GLOO_SOCKET_IFNAME", name)


def use_horovod_operations(kind: str) -> None:
    """Fix Horovod's controller and CPU operations to "mpi" or "gloo": mixing the two crashes (SIGSEGV)."""
    set_default("HOROVOD_CONTROLLER", kind)
    set_default("HOROVOD_CPU_OPERATIONS", kind)
