"""Memory of this process as the kernel counts it."""

import mmap
import os
import subprocess
import sys

from hvd_trainer.bench import memory


def test_a_block_that_lives_for_a_moment_is_seen():
    before = memory.pss_bytes(memory.ROLLUP.read_text())
    with memory.PeakPss() as peak:
        block = mmap.mmap(-1, 64 * 2**20)  # not by malloc, which may have kept as much of another test's
        block.write(bytes(64 * 2**20))
        memory.threading.Event().wait(0.1)
        block.close()
    assert peak.bytes - before > 48 * 2**20
    assert memory.peak_rss_bytes() >= peak.bytes - 2**20


def test_the_launcher_is_what_stands_between():
    """A process as launcher, which holds 32 MiB more than another; this one is the starter, and does not count."""
    child = f"from hvd_trainer.bench import memory; print(memory.launcher_pss_bytes({os.getpid()}), memory.launcher_pss_bytes(2**30))"
    between = "import subprocess, sys; block = bytearray({}); subprocess.run([sys.executable, '-c', {!r}], check=True)"
    said = [subprocess.run([sys.executable, "-c", between.format(size, child)], capture_output=True, text=True, check=True).stdout.split() for size in (0, 32 * 2**20)]
    assert 2**20 < int(said[0][0]) and 31 * 2**20 < int(said[1][0]) - int(said[0][0]) < 36 * 2**20
    assert memory.launcher_pss_bytes(os.getppid()) == 0 and said[0][1] == "None"
