"""From a specification to the command line of torchrun (pure)."""

from __future__ import annotations

from hvd_trainer.errors import ConfigError
from hvd_trainer.launcher.present import Present
from hvd_trainer.launcher.spec import LaunchSpec
from hvd_trainer.launcher.start_line import StartLine, thread_variables


def build(spec: LaunchSpec, present: Present) -> StartLine:
    """The command line of torchrun, which starts ranks on this machine.

    Args:
        spec: the job.
        present: not needed; all argv modules are called alike.

    Raises:
        ConfigError: hosts were given; torchrun has to be started on each host by somebody else.
    """
    if spec.hosts:
        raise ConfigError(
            f"--with torchrun --hosts {spec.hosts_text}",
            "ranks on this machine: torchrun starts none on another",
            "--with mpirun or horovodrun; or start torchrun --nnodes ... on each host yourself",
        )
    argv = [
        spec.python,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(spec.ranks),
        "--tee",
        "3",
    ]
    # torchrun's prefix is [default0]: with the rank within the host.
    env = {**thread_variables(spec.threads), "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}] "}
    return StartLine([*argv, *spec.command], env)
