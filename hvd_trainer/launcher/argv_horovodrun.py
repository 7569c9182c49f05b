"""From a specification to the command line of horovodrun (pure)."""

from __future__ import annotations

from hvd_trainer.launcher.present import Present
from hvd_trainer.launcher.spec import LaunchSpec
from hvd_trainer.launcher.start_line import StartLine, thread_variables


def build(spec: LaunchSpec, present: Present) -> StartLine:
    """The command line of horovodrun, which takes MPI where Horovod was built with it, else Gloo.

    Args:
        spec: the job.
        present: which mpirun horovodrun will find, and whether this Horovod carries our repairs.
    """
    line = StartLine([present.horovodrun, "-np", str(spec.ranks)], thread_variables(spec.threads))
    if spec.hosts:
        line.argv.extend(["-H", spec.hosts_text])
    if present.mpi.name == "Open MPI":
        if not present.horovod_repaired and major(present.mpi.version) >= 5:
            line.argv.append("--binding-args=--bind-to none --map-by slot")
            line.notes.append(
                "--binding-args: horovodrun's own binding options have one dash, which Open MPI 5 refuses"
            )
        if not spec.hosts and spec.ranks > present.cores:
            line.argv.append("--mpi-args=--oversubscribe")
            line.notes.append("--oversubscribe: there are more ranks than cores, each is slower for it")
    line.argv.extend(spec.argv)
    return line


def major(version: str) -> int:
    """5 for "5.0.11"; 0 for a text without a number.

    Example:
        >>> major("5.0.11"), major("main")
        (5, 0)
    """
    head = version.split(".")[0]
    return int(head) if head.isdigit() else 0
