"""From a specification to the command line of mpirun (pure): Open MPI, and Hydra (MPICH, Intel MPI)."""

from __future__ import annotations

from hvd_trainer.launcher.present import Present
from hvd_trainer.launcher.spec import LaunchSpec
from hvd_trainer.launcher.start_line import StartLine, thread_variables


def build(spec: LaunchSpec, present: Present) -> StartLine:
    """The command line of mpirun.

    Args:
        spec: the job.
        present: whose mpirun it is, how many cores there are, whether we are root.
    """
    if present.mpi.name in ("MPICH", "Intel MPI"):
        return hydra(spec, present)
    return open_mpi(spec, present)


def open_mpi(spec: LaunchSpec, present: Present) -> StartLine:
    """Open MPI's mpirun. mpirun stands there with its full path: so it finds its other half on other hosts."""
    line = StartLine([present.mpirun], thread_variables(spec.threads))
    if present.root:
        line.argv.append("--allow-run-as-root")
        line.notes.append("--allow-run-as-root: you are root, and Open MPI starts nothing as root without consent")
    line.argv.extend(["-np", str(spec.ranks)])
    here = not spec.hosts and not present.allocation
    if spec.hosts:
        line.argv.extend(["--host", spec.hosts_text])
    if here and spec.ranks > present.cores:
        line.argv.append("--oversubscribe")
        line.notes.append(f"--oversubscribe: {spec.ranks} ranks share {cores(present)}, each is slower for it")
    line.argv.extend([*open_mpi_binding(spec, present, here), "--tag-output"])
    if not here:  # Open MPI takes only its own variables to other hosts
        for name in [*line.env, *present.own_variables]:
            line.argv.extend(["-x", name])
    line.argv.extend(spec.argv)
    return line


def open_mpi_binding(spec: LaunchSpec, present: Present, here: bool) -> list[str]:
    """Where the ranks may run.

    Open MPI's own choice for two ranks is one core each, however many there are; so each gets its share where that is
    sure to fit, and else nobody is bound, and `ht.init` divides the cores by setting the threads.
    """
    if here:
        each = spec.threads or (present.cores // spec.ranks if present.cores % spec.ranks == 0 else 0)
        if each == 0 or spec.ranks * each > present.cores:
            return ["--bind-to", "none"]
    elif spec.threads is None:
        return ["--bind-to", "none"]
    else:
        each = spec.threads
    return ["--map-by", f"slot:PE={each}", "--bind-to", "core"]


def hydra(spec: LaunchSpec, present: Present) -> StartLine:
    """The mpirun of MPICH and Intel MPI; it takes our variables along by itself."""
    line = StartLine([present.mpirun, "-np", str(spec.ranks)], thread_variables(spec.threads))
    if spec.hosts:
        line.argv.extend(["-hosts", spec.hosts_text])
    if spec.threads and present.mpi.name == "MPICH" and spec.ranks * spec.threads <= present.cores:
        line.argv.extend(["-bind-to", f"core:{spec.threads}"])
    if spec.ranks > present.cores and not spec.hosts and not present.allocation:
        line.notes.append(f"{spec.ranks} ranks share {cores(present)}, each is slower for it")
    line.argv.extend(["-prepend-rank", *spec.argv])
    return line


def cores(present: Present) -> str:
    """ "1 core", "8 cores"."""
    return f"{present.cores} core{'s' if present.cores != 1 else ''}"
