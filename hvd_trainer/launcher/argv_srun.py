"""From a specification to the command line of SLURM's srun (pure)."""

from __future__ import annotations

from hvd_trainer.launcher.present import Present
from hvd_trainer.launcher.spec import LaunchSpec
from hvd_trainer.launcher.start_line import StartLine, thread_variables


def build(spec: LaunchSpec, present: Present) -> StartLine:
    """The command line of srun, inside an allocation or outside (then it asks for one).

    Args:
        spec: the job.
        present: the MPI, and the protocols that this SLURM speaks.
    """
    line = StartLine([present.srun, f"--ntasks={spec.ranks}"], thread_variables(spec.threads))
    if spec.hosts:
        line.argv.extend([f"--nodes={len(spec.hosts)}", f"--nodelist={','.join(host.name for host in spec.hosts)}"])
        if len({host.slots for host in spec.hosts}) == 1:
            line.argv.append(f"--ntasks-per-node={spec.hosts[0].slots}")
    if spec.threads:
        line.argv.append(f"--cpus-per-task={spec.threads}")
    if present.srun_type:
        line.argv.append(f"--mpi={present.srun_type}")
    else:
        kind = str(present.mpi) if present.mpi.name else "an MPI"
        line.notes.append(
            f"this SLURM cannot start ranks of {kind} (srun --mpi=list), so they will talk through torch's Gloo or NCCL"
        )
    # srun lets the other ranks wait when one fails, and takes a single Ctrl-C for a question.
    line.argv.extend(["--kill-on-bad-exit=1", "--quit-on-interrupt", "--label", *spec.argv])
    return line
