"""What is to be started: ranks, hosts, threads and the script, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hvd_trainer.errors import ConfigError

LAUNCHERS = ("mpirun", "horovodrun", "torchrun", "srun")
MOST_RANKS = 100_000


@dataclass(frozen=True)
class Host:
    """A machine and how many ranks it may take.

    Args:
        name: as ssh and SLURM know it.
        slots: ranks, at least 1.
    """

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


@dataclass(frozen=True)
class LaunchSpec:
    """A job as the user asked for it; the same for every launcher.

    Args:
        ranks: processes in all, at least 1.
        command: the script and its arguments.
        python: full path of the interpreter: other hosts get no PATH of ours.
        hosts: where to start; empty: this machine, or the nodes of the SLURM allocation.
        threads: CPU threads a rank, at least 1; None: as many as the cores give, decided when the ranks are running.

    Raises:
        ConfigError: an impossible number, hosts with too few slots or twice the same, or no script.
    """

    ranks: int
    command: tuple[str, ...]
    python: str
    hosts: tuple[Host, ...] = ()
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            raise ConfigError(f"-np {self.ranks}", f"1 to {MOST_RANKS} ranks", "for example: -np 2")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"--threads {self.threads}", "1 or more", "leave it out to divide the cores")
        if not self.command:
            raise ConfigError("no script was given", fix="hvd-trainer launch -np 2 train.py")
        names = [host.name for host in self.hosts]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"host {twice[0]} is named twice", "each host once", f"add up: {twice[0]}:SLOTS")
        slots = sum(host.slots for host in self.hosts)
        if self.hosts and slots < self.ranks:
            shown = ",".join(map(str, self.hosts))
            raise ConfigError(
                f"-np {self.ranks}, but {shown} is room for {slots}",
                f"at most {slots} ranks on these hosts",
                "give more slots: --hosts name:SLOTS,...",
            )

    @property
    def argv(self) -> list[str]:
        """Interpreter, script and arguments: the end of every launcher's command line."""
        return [self.python, *self.command]

    @property
    def hosts_text(self) -> str:
        """ "node1:2,node2:2"."""
        return ",".join(map(str, self.hosts))


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Hosts from the command line.

    Args:
        text: names with slots, separated by commas; a name alone has one slot.

    Raises:
        ConfigError: no name, or slots that are no number.

    Example:
        >>> parse_hosts("node1:2,node2:4")
        (Host(name='node1', slots=2), Host(name='node2', slots=4))
    """
    return tuple(one_host(part.strip(), f"--hosts {text}") for part in text.split(","))


def parse_hostfile(text: str, name: str = "hostfile") -> tuple[Host, ...]:
    """Hosts from a file: one a line, as "node1 slots=2" (Open MPI, Horovod) or "node1:2" (MPICH); # begins a comment.

    Raises:
        ConfigError: a line of another kind, or no host at all.

    Example:
        >>> parse_hostfile("# two machines\\nnode1 slots=2\\nnode2:4")
        (Host(name='node1', slots=2), Host(name='node2', slots=4))
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name_and_slots = words[0]
        if len(words) == 2 and words[1].startswith("slots="):
            name_and_slots += ":" + words[1].removeprefix("slots=")
        elif len(words) > 1:
            raise ConfigError(f"{name}, line {number}: {line.strip()!r}", "node1 slots=2, or node1:2")
        hosts.append(one_host(name_and_slots, f"{name}, line {number}"))
    if not hosts:
        raise ConfigError(f"{name} names no host", "lines as: node1 slots=2")
    return tuple(hosts)


def one_host(text: str, where: str) -> Host:
    """A host from "name:slots" or "name"."""
    name, colon, slots = text.partition(":")
    if not name or name.startswith("-") or any(letter.isspace() for letter in name):
        raise ConfigError(f"{where}: {text!r} is no host", "name or name:slots, separated by commas")
    if colon and not (slots.isdigit() and int(slots) > 0):
        raise ConfigError(f"{where}: {text!r} has no number of slots", "name:slots with slots of at least 1")
    return Host(name, int(slots) if colon else 1)


def check_script(command: Sequence[str]) -> None:
    """Refuse a script that is not there, before N ranks say so.

    Raises:
        ConfigError: no such file, or a program that is not Python.
    """
    script = command[0] if command else ""
    if script and not Path(script).is_file():
        fix = "leave out the word python: hvd-trainer launch -np 2 train.py" if "python" in script else f"a path from here, {Path.cwd()}"
        raise ConfigError(f"script {script!r} is not a file", "a Python script", fix)
