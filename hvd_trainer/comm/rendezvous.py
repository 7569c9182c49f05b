"""Where the ranks of the torch engine meet: an init method for torch.distributed, worked out from the launcher's variables."""

from __future__ import annotations

import fcntl
import socket
import struct
import zlib
from collections.abc import Mapping
from urllib.parse import urlsplit

from hvd_trainer.comm.launched import Launched
from hvd_trainer.errors import ConfigError, StartError

THROUGH_MPI = "mpi"  # no address can be derived: rank 0 tells its own through mpi4py
SLURM_LAUNCHERS = ("pmix", "pmi2", "slurm")
# Below 32768, where Linux begins to hand out ports of its own accord, so that only another job can sit on ours.
FIRST_PORT, NUM_PORTS = 15000, 15000
SIOCGIFADDR = 0x8915  # Linux: the address of an interface


def method(launched: Launched, env: Mapping[str, str], given: str | None = None) -> str:
    """The init method that all ranks derive alike, without talking.

    Args:
        launched: who started us.
        env: the environment it was read from.
        given: the user's init_method; wins.

    Returns:
        "env://" under torchrun; "tcp://host:port" on the first node of a SLURM step, or on this machine where all ranks
        are on it; `THROUGH_MPI` where an MPI's launcher started ranks on several nodes; "" for one process, which meets
        nobody.

    Raises:
        ConfigError: `given` is no init method.
        StartError: nothing here says where to meet.

    Example:
        >>> step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "node[03-04]"}
        >>> method(Launched("slurm", 1, 2), step)
        'tcp://node03:29024'
    """
    if given:
        return check(given)
    if launched.size == 1:
        return ""
    if launched.launcher == "torchrun":
        return "env://"
    if launched.launcher in SLURM_LAUNCHERS:
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
        job = env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID") or ""
        step = env.get("SLURM_STEP_ID") or env.get("SLURM_STEPID") or ""
        if nodes and job:
            return f"tcp://{first_host(nodes)}:{port_for(f'slurm.{job}.{step}')}"
    elif launched.local_size == launched.size:
        name = job_name(launched, env)
        if name:
            return f"tcp://127.0.0.1:{port_for(name)}"
    if launched.by_mpi:
        return THROUGH_MPI
    raise nowhere(launched)


def check(given: str) -> str:
    """The user's init method, if it is one.

    Raises:
        ConfigError: unknown kind, no port, or a file without a full path.
    """
    try:
        url = urlsplit(str(given))
        ok = (
            given == "env://"
            or (url.scheme == "tcp" and bool(url.hostname) and bool(url.port))
            or (url.scheme == "file" and not url.netloc and len(url.path) > 1)
        )
    except ValueError:  # a port that is no number
        ok = False
    if ok:
        return str(given)
    raise ConfigError(
        f"init_method={given!r}",
        "env://, tcp://host:port or file:///path",
        "tcp:// with the first node's name and a free port, or a file that does not exist yet and that all nodes see",
    )


def nowhere(launched: Launched, why: str = "") -> StartError:
    """The error where no meeting place can be derived."""
    return StartError(
        f"engine torch: {launched.size} processes were started {launched.started_by}, and nothing says where they can meet"
        + (f" ({why})" if why else ""),
        fix='give the place: HVD_TRAINER_INIT_METHOD=tcp://FIRST_NODE:29500, or ht.init(init_method="...")',
    )


def job_name(launched: Launched, env: Mapping[str, str]) -> str:
    """A text that is the same for all ranks of this job on this machine and differs between jobs; "" if there is none."""
    if launched.launcher == "horovod-gloo":
        return f"horovod.{env.get('HOROVOD_GLOO_RENDEZVOUS_PORT', '')}"
    return env.get("PMIX_NAMESPACE", "")


def port_for(job: str) -> int:
    """A port for a job, the same on all its ranks. Another job may have it: then rank 0 cannot open it, and says so.

    Example:
        >>> port_for("slurm.7.0"), port_for("slurm.8.0")
        (29024, 22461)
    """
    return FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS


def first_host(nodes: str) -> str:
    """The first host of a SLURM node list; SLURM puts rank 0 there.

    Example:
        >>> first_host("gpu[007-010,12],login"), first_host("rack2-n[3,5]-ib"), first_host("a1,a2")
        ('gpu007', 'rack2-n3-ib', 'a1')
    """
    host, depth, skipping = "", 0, False
    for letter in nodes.strip():
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth, skipping = depth - 1, False
        elif letter == "," and not depth:
            break
        elif depth and letter in "-,":  # of the range only its beginning
            skipping = True
        elif not skipping:
            host += letter
    return host


def own_address() -> str:
    """An address of this host that others can reach."""
    return named_address() or addresses().get(interface(), "127.0.0.1")


def named_address() -> str:
    """The address that this host's own name leads to; "" where others cannot reach that.

    Debian writes the name into /etc/hosts as 127.0.1.1.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return "" if address.startswith("127.") else address


def interface(toward: str = "") -> str:
    """The network interface that leads to the other nodes, where Gloo, which goes by the host's own name, would not find it.

    Args:
        toward: a host of the job.

    Returns:
        The only interface with an address; of several, the one that leads to `toward` or out; "" where that is unclear.
    """
    found = addresses()
    if len(found) == 1:
        return next(iter(found))
    for target in (toward, "192.0.2.1"):  # the second is reserved for documentation: it stands for "out"
        source = source_address(target) if target else ""
        names = [name for name, address in found.items() if address == source]
        if names:
            return names[0]
    return ""


def addresses() -> dict[str, str]:
    """The IPv4 address of each network interface, the loopback aside."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # has none
                continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                found[name] = address
    return found


def source_address(target: str) -> str:
    """From which of our addresses a message to `target` goes out; nothing is sent. "" where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))  # a datagram socket only notes the address
            return probe.getsockname()[0]
        except OSError:
            return ""


def free_port() -> int:
    """A port that nobody has at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
