"""Let malloc keep what a training step frees, because the next step asks for the same again.

glibc gives large blocks back to the kernel when they are freed and takes new ones, page by page, when they are asked for: each page is
an interrupt and 4 KB of zeros. Activations and gradients are freed and asked for in every step.

The time to ask is after the first step: what was freed before (data sets, copies made at the start) has gone back, and with what a step
asks for the heap grows to what it needs.
"""

from __future__ import annotations

import ctypes

from hvd_trainer import env

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of <malloc.h>
KEPT_BYTES = 1 << 30  # of free memory at the end of the heap, at most; what is beyond goes back
MAPPED_BYTES = 32 << 20  # the largest threshold that glibc takes: blocks from here on are mapped anew each time
_asked: list[bool] = []
_advised: list[bool] = []


def keep_freed_memory(largest_block_bytes: int = 0) -> str:
    """Ask malloc to keep freed memory in this process, the first time, and not where the user has told malloc what to do.

    Blocks of `MAPPED_BYTES` and more go back all the same, unless `HVD_TRAINER_MALLOC=all`: in the heap they leave holes into
    which the next one does not always fit. With `HVD_TRAINER_MALLOC=system`, with variables of malloc's own that say the same
    (`env.MALLOC_VARIABLES`), and where the C library is not glibc, nothing changes.

    Args:
        largest_block_bytes: that a step asks for, as far as the caller knows.

    Returns:
        Advice where the user has said nothing and there is more to be had, once; else "".

    Source: mallopt(3).
    """
    kept = env.malloc_keeps()
    if not _asked:
        _asked.append(kept != "system" and _set((M_MMAP_MAX, 0) if kept == "all" else (M_MMAP_THRESHOLD, MAPPED_BYTES)))
    is_settled = not _asked[0] or bool(env.own_setting("MALLOC", "")[1])  # nothing to be had, or the user has chosen
    if is_settled or _advised or largest_block_bytes < MAPPED_BYTES:
        return ""
    _advised.append(True)
    return (
        f"a step frees blocks of up to {largest_block_bytes >> 20} MiB, which cost a page fault each 4 KB when it asks for them again: "
        "with HVD_TRAINER_MALLOC=all they are kept, for one to three of them more memory in each rank (blocks: as now)"
    )


def _set(mapping: tuple[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(*mapping))
