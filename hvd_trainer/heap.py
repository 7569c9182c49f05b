"""Let malloc keep what a training step frees, because the next step asks for the same again.

glibc gives large blocks back to the kernel when they are freed and takes new ones, page by page, when they are asked for: each page is
an interrupt and 4 KB of zeros. Activations and gradients are freed and asked for in every step.

The time to ask is after the first step: what was freed before (data sets, copies made at the start) has gone back, and with what a step
asks for the heap grows to what it needs. Asked before it, a model of 76 MB held 50 to 250 MB more.
"""

from __future__ import annotations

import ctypes

from hvd_trainer import env

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of <malloc.h>
KEPT_BYTES = 1 << 30  # of free memory at the end of the heap, at most; what is beyond goes back
_asked: list[bool] = []


def keep_freed_memory() -> bool:
    """Ask malloc to keep freed memory in this process; once, and not where the user has told malloc what to do.

    Returns:
        Whether it does so from here on: False with `HVD_TRAINER_MALLOC=system`, with variables of malloc's own that say the
        same (`env.MALLOC_VARIABLES`), and where the C library is not glibc.

    Source: mallopt(3).
    """
    if not _asked:
        _asked.append(env.may_set_malloc() and _set())
    return _asked[0]


def _set() -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(M_MMAP_MAX, 0))
