"""The rank in front of each line, in one form, from what each launcher writes (pure)."""

from __future__ import annotations

import re

_TAGS = {
    # Open MPI: "[1,0]<stdout>: text", "[host-123@1,0]<stderr>: text"; with horovodrun --gloo: "[0]<stdout>:text".
    "mpirun": re.compile(r"^\[(?:[^\],]*,)?(\d+)\]<std(?:out|err)>: ?"),
    "horovodrun": re.compile(r"^\[(?:[^\],]*,)?(\d+)\]<std(?:out|err)>: ?"),
    "srun": re.compile(r"^ *(\d+): "),
}


def relabel(line: str, launcher: str) -> str:
    """A line with its rank as "[3] text"; a line of the launcher's own stays as it is.

    Args:
        line: without the newline.
        launcher: whose line it is; what torchrun and Hydra write has this form already.

    Example:
        >>> relabel("[1,0]<stdout>: epoch 1", "mpirun"), relabel("12: epoch 1", "srun"), relabel("srun: error", "srun")
        ('[0] epoch 1', '[12] epoch 1', 'srun: error')
    """
    tag = _TAGS.get(launcher)
    return tag.sub(r"[\1] ", line, count=1) if tag else line
