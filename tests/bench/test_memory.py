"""Memory of this process as the kernel counts it."""

import torch

from hvd_trainer.bench import memory


def test_a_block_that_lives_for_a_moment_is_seen():
    before = memory.pss_bytes(memory.ROLLUP.read_text())
    with memory.PeakPss() as peak:
        block = torch.ones(64 * 2**20 // 4)
        memory.threading.Event().wait(0.1)
        del block
    assert peak.bytes - before > 48 * 2**20
    assert memory.peak_rss_bytes() >= peak.bytes - 2**20
